//! The confinement of this process, which its forks' children take over.

use std::io;
use std::sync::OnceLock;

use volt_vmm::internal::paths::OWN_PROGRAM;
use volt_vmm::internal::{digest, keep_kvm, programs};
use volt_vmm::sandbox;
use volt_vmm::sandbox::{CgroupLimits, Confinement, Isolation, OnForbiddenCall};
use volt_vmm::{Error, Result, VmShape};

use crate::process::child_command::child_pattern;
use crate::process::confinement_choice::ConfinementChoice;
use crate::process::{environment, forbidden_calls, log};

static CHOSEN: OnceLock<ConfinementChoice> = OnceLock::new();

/// Returns the confinement of this process.
pub(crate) fn chosen() -> ConfinementChoice {
    CHOSEN.get().cloned().unwrap_or_default()
}

/// Confines this process, which has one thread and no VM. `shape` bounds its memory and CPU time, if it is
/// known.
///
/// # Errors
/// As [`sandbox::confine`]; or the file of filters cannot be read, or has changed since the parent of a fork
/// read it.
pub(crate) fn apply(mut choice: ConfinementChoice, shape: Option<VmShape>) -> Result<()> {
    let filters = read_filters(&mut choice)?;
    choice.log = log::chosen();
    let choice = CHOSEN.get_or_init(|| choice);
    let ConfinementChoice { is_on, seccomp, is_child, strict, .. } = choice;
    if !is_on {
        return Ok(());
    }
    let mut confinement =
        Confinement::default().one_vm().on_forbidden(OnForbiddenCall::Signal).filters(filters);
    confinement.seccomp = *seccomp;
    confinement.programs = vec![child_pattern(choice)?];
    if *is_child {
        confinement.programs.extend([programs::passt(), programs::pager(OWN_PROGRAM)]);
        confinement.these_programs_only = true;
    }
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
    environment::forget_secrets();
    if strict.is_some() {
        // From an empty root the opener alone could open it.
        keep_kvm();
    }
    sandbox::confine(&confinement)
}

/// Reads the file of filters, if there is one, and notes its digest.
fn read_filters(choice: &mut ConfinementChoice) -> Result<Option<String>> {
    let Some(path) = choice.filters.as_deref().filter(|_| choice.is_on) else { return Ok(None) };
    let failed =
        |source| Error::File { act: "read seccomp filters", name: path.display().to_string(), source };
    let text = std::fs::read_to_string(path).map_err(failed)?;
    let digest = digest(text.as_bytes());
    if choice.filters_digest.as_ref().is_some_and(|expected| *expected != digest) {
        return Err(failed(io::Error::other("it has changed since the VM that is forked was started")));
    }
    choice.filters_digest = Some(digest);
    Ok(Some(text))
}
