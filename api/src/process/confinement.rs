//! The confinement of this process, which its forks' children take over.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use volt_vmm::sandbox;
use volt_vmm::sandbox::{CgroupLimits, Confinement, Isolation, OnForbiddenCall};
use volt_vmm::{Error, Result, VmShape};

use crate::process::forbidden_calls;

/// The confinement that the command line asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ConfinementChoice {
    /// Whether the process is confined at all.
    pub(crate) is_on: bool,
    /// Whether system calls are filtered.
    pub(crate) seccomp: bool,
    /// Filters in place of the built-in ones.
    pub(crate) filters: Option<String>,
    /// Isolation by namespaces and a control group, if it is asked for.
    #[serde(default)]
    pub(crate) strict: Option<StrictChoice>,
}

/// The isolation that the command line asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StrictChoice {
    /// The control group in which that of the VM is made.
    pub(crate) cgroup_parent: Option<PathBuf>,
    /// Lines of `io.max`.
    pub(crate) io_max: Vec<String>,
}

impl Default for ConfinementChoice {
    fn default() -> Self {
        Self { is_on: true, seccomp: true, filters: None, strict: None }
    }
}

static CHOSEN: OnceLock<ConfinementChoice> = OnceLock::new();

/// Returns the confinement of this process.
pub(crate) fn chosen() -> ConfinementChoice {
    CHOSEN.get().cloned().unwrap_or_default()
}

/// Confines this process, which has one thread and no VM. `shape` bounds its memory and CPU time, if it is
/// known.
///
/// # Errors
/// As [`sandbox::confine`].
pub(crate) fn apply(choice: ConfinementChoice, shape: Option<VmShape>) -> Result<()> {
    let ConfinementChoice { is_on, seccomp, filters, strict } = CHOSEN.get_or_init(|| choice);
    if !is_on {
        return Ok(());
    }
    let mut confinement =
        Confinement::default().one_vm().on_forbidden(OnForbiddenCall::Signal).filters(filters.clone());
    confinement.seccomp = *seccomp;
    confinement.strict = strict.as_ref().map(|strict| Isolation {
        limits: CgroupLimits {
            parent: strict.cgroup_parent.clone(),
            guest_memory: shape.map(|shape| shape.memory_bytes),
            vcpus: shape.map(|shape| shape.vcpus.into()),
            io: strict.io_max.clone(),
        },
        // The VM opens files by path.
        empty_root: false,
    });
    if *seccomp {
        forbidden_calls::install_handler();
    }
    sandbox::confine(&confinement)
}

/// Reads a file of filters.
///
/// # Errors
/// [`Error::File`] if it cannot be read as text.
pub(crate) fn read_filters(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|source| Error::File {
        act: "read seccomp filters",
        name: path.display().to_string(),
        source,
    })
}
