//! Rewinds a restored VM to its snapshot, in place: resets changed pages, restores the machine's state, and
//! empties the disks' layers. It makes no process, VM or mapping anew.
//!
//! KVM's dirty log tells the changed pages, from the start ([`crate::snapshot::RestoreOptions::rewindable`])
//! or from the first rewind on. Before that the page tables tell them.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::machine::shared::SharedMachine;
use crate::memory::dirty::populated::private_pages;
use crate::memory::dirty::reset;
use crate::memory::page_set::PageSet;
use crate::snapshot::history::{History, RestoredFrom};

const ACT: &str = "rewind the VM";

/// Times and page counts of a rewind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RewindStats {
    /// The pause of the vCPUs. Zero for a VM that was paused before.
    pub paused: Duration,
    /// Pages reset.
    pub pages: u64,
}

/// Rewinds a VM. The caller keeps captures out.
///
/// # Errors
/// The VM was not restored, has ended, or has a disk that cannot be rewound; then it is as it was. Or the
/// host refuses midway; then the VM has ended.
pub(crate) fn rewind(vm: &SharedMachine, history: &mut History) -> Result<RewindStats> {
    if history.origin.is_none() || history.is_of_template {
        return Err(Error::config(
            "snapshot",
            "this VM was not restored from a snapshot, so there is none to rewind it to",
        ));
    }
    vm.on_machine(|machine| {
        machine.check_rewind()?;
        machine.shell().watch_writes()
    })?;
    let (pages, paused) = vm.paused_for(ACT, |machine| {
        reset::check(&machine.shell().ram)?;
        let pages = changed(machine, history)?;
        let Some(origin) = &mut history.origin else { unreachable!("looked at above") };
        // From here on an error ends the VM: its memory is neither old nor new.
        put_all_back(machine, origin, &pages).inspect_err(|error| machine.end_after_failure(ACT, error))?;
        origin.changed = Some(PageSet::none(machine.shell().ram.len()));
        history.changed(&pages);
        Ok(pages.len())
    })?;
    Ok(RewindStats { paused, pages })
}

/// The pages that may differ from the snapshot's.
fn changed(machine: &Machine, history: &mut History) -> Result<PageSet> {
    let shell = machine.shell();
    history.collect_dirty(shell.ram.len(), |written| shell.take_dirty(written))?;
    match &history.origin {
        Some(RestoredFrom { changed: Some(pages), .. }) => Ok(pages.clone()),
        _ => private_pages(&shell.ram),
    }
}

fn put_all_back(machine: &mut Machine, origin: &RestoredFrom, pages: &PageSet) -> Result<()> {
    reset::reset(&machine.shell().ram, pages, origin.over.as_ref())?;
    machine.rewind(&origin.machine).map_err(|source| {
        let path = origin.path.clone();
        Error::Restore { path, source: Box::new(source) }
    })
}
