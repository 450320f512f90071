//! The confinement of this process, which its forks' children take over.

use std::path::Path;
use std::sync::OnceLock;

use volt_vmm::sandbox;
use volt_vmm::sandbox::{CgroupLimits, Confinement, Isolation, OnForbiddenCall};
use volt_vmm::{Error, Result, VmShape};

use crate::process::child_command::child_pattern;
use crate::process::confinement_choice::ConfinementChoice;
use crate::process::forbidden_calls;

static CHOSEN: OnceLock<ConfinementChoice> = OnceLock::new();

/// Returns the confinement of this process.
pub(crate) fn chosen() -> ConfinementChoice {
    CHOSEN.get().cloned().unwrap_or_default()
}

/// Confines this process, which has one thread and no VM. `shape` bounds its memory and CPU time, if it is
/// known.
///
/// # Errors
/// As [`sandbox::confine`]; or the file of filters cannot be read.
pub(crate) fn apply(choice: ConfinementChoice, shape: Option<VmShape>) -> Result<()> {
    let choice = CHOSEN.get_or_init(|| choice);
    let ConfinementChoice { is_on, seccomp, filters, strict } = choice;
    if !is_on {
        return Ok(());
    }
    let filters = filters.as_deref().map(read_filters).transpose()?;
    let mut confinement =
        Confinement::default().one_vm().on_forbidden(OnForbiddenCall::Signal).filters(filters);
    confinement.seccomp = *seccomp;
    confinement.programs = vec![child_pattern(choice)];
    confinement.bounds = strict.as_ref().map(|strict| strict.bounds.clone());
    confinement.strict = strict.as_ref().map(|strict| Isolation {
        limits: CgroupLimits {
            parent: strict.cgroup_parent.clone(),
            guest_memory: shape.map(|shape| shape.memory_bytes),
            vcpus: shape.map(|shape| shape.vcpus.into()),
            io: strict.io_max.clone(),
        },
        empty_root: true,
    });
    if *seccomp {
        forbidden_calls::install_handler();
    }
    sandbox::confine(&confinement)
}

/// Reads a file of filters.
fn read_filters(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|source| Error::File {
        act: "read seccomp filters",
        name: path.display().to_string(),
        source,
    })
}
