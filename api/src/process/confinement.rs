//! The confinement of this process, which its forks' children take over.

use std::path::Path;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use volt_vmm::sandbox;
use volt_vmm::sandbox::{Confinement, OnForbiddenCall};
use volt_vmm::{Error, Result};

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
}

impl Default for ConfinementChoice {
    fn default() -> Self {
        Self { is_on: true, seccomp: true, filters: None }
    }
}

static CHOSEN: OnceLock<ConfinementChoice> = OnceLock::new();

/// Returns the confinement of this process.
pub(crate) fn chosen() -> ConfinementChoice {
    CHOSEN.get().cloned().unwrap_or_default()
}

/// Confines this process, which has one thread and no VM. `has_vsock` says whether its VM may have a vsock
/// device, whose connections need another process.
///
/// # Errors
/// As [`sandbox::confine`].
pub(crate) fn apply(choice: ConfinementChoice, has_vsock: bool) -> Result<()> {
    let ConfinementChoice { is_on, seccomp, filters } = CHOSEN.get_or_init(|| choice);
    if !is_on {
        return Ok(());
    }
    let mut confinement =
        Confinement::default().one_vm().on_forbidden(OnForbiddenCall::Signal).filters(filters.clone());
    confinement.seccomp = *seccomp;
    confinement.opener = has_vsock;
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
