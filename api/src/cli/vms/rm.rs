//! `volt-vmm rm` and `prune`: remove what is kept of ended VMs.

use clap::Args;
use rustix::process::Signal;

use super::pause::for_each;
use super::stop::kill;
use super::target::Target;
use crate::cli::{Outcome, complete};
use crate::output::print::print;
use crate::process::exit::Status;
use crate::run_dir::data_dir;
use crate::run_dir::listing;
use crate::run_dir::name::VmName;
use crate::run_dir::root::RunRoot;

/// Remove ended VMs: their names are free then, and their logs are gone
///
/// Example: volt-vmm rm web
#[derive(Debug, Args)]
pub(crate) struct Rm {
    /// Names of the VMs, or the beginnings of their ids
    #[arg(value_name = "VM", required = true, add = complete::ended_vms())]
    vms: Vec<String>,

    /// Kill a VM that runs
    #[arg(short, long)]
    force: bool,
}

/// Remove all ended VMs, and print their names. After an error it goes on with the others
///
/// Example: volt-vmm prune
#[derive(Debug, Args)]
pub(crate) struct Prune {
    /// Print the names as JSON
    #[arg(long)]
    json: bool,
}

impl Rm {
    pub(crate) fn execute(self) -> Outcome {
        let root = RunRoot::open()?;
        for_each(&self.vms, |word| {
            let target = Target::find(word)?;
            if self.force && target.api().is_ok() {
                // One that has ended meanwhile is removed too.
                kill(&target, Signal::KILL)
                    .or_else(|failure| target.api().map_or(Ok(()), |_| Err(failure)))?;
            }
            root.remove(&target.with_name()?.record).map(drop)
        })
    }
}

impl Prune {
    pub(crate) fn execute(self) -> Outcome {
        let mut removed = Vec::new();
        let outcome = match RunRoot::existing()? {
            Some(root) => remove_ended(&root, &mut removed),
            None => Ok(Status::Success),
        };
        print(&removed, self.json, |removed| removed.iter().map(|name| format!("{name}\n")).collect())?;
        outcome
    }
}

/// Removes what it can, and adds the names.
fn remove_ended(root: &RunRoot, removed: &mut Vec<VmName>) -> Outcome {
    root.remove_abandoned()?;
    data_dir::remove_abandoned(root)?;
    let vms = listing::all(root)?;
    for_each(vms.iter().filter(|vm| !vm.is_alive()), |vm| {
        let is_removed = root.remove(&vm.record)?;
        removed.extend(is_removed.then(|| vm.name().clone()));
        Ok(())
    })
}
