//! `volt-vmm wait`: waits for the end of VMs.

use clap::Args;
use serde::Serialize;

use super::target::Target;
use crate::cli::{Outcome, complete};
use crate::messages::say;
use crate::output::print::print;
use crate::process::exit::Status;
use crate::run_dir::name::VmName;
use crate::run_dir::outcome::EndOfVm;
use crate::run_dir::vm_dir::VmDir;

/// Wait until VMs have ended. Print status and cause of each, and end with the status of the last
///
/// Example: volt-vmm wait web
#[derive(Debug, Args)]
pub(crate) struct Wait {
    /// Names of the VMs, or the beginnings of their ids
    #[arg(value_name = "VM", required = true, add = complete::vms())]
    vms: Vec<String>,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Waits for the end of a VM. Says how it ended, and has its status.
///
/// # Errors
/// The host refuses to wait.
pub(super) fn end_as(vm: &VmDir) -> Outcome {
    let end = vm.wait()?;
    say(format!("volt-vmm: VM {} has ended: {}", vm.name(), end.message));
    Ok(Status::of_code(end.status))
}

/// The end of a VM.
#[derive(Debug, Serialize)]
struct Ended {
    name: VmName,
    #[serde(flatten)]
    end: EndOfVm,
}

impl Wait {
    pub(crate) fn execute(self) -> Outcome {
        let vms = self.vms.iter().map(|word| Target::find(word)?.with_name());
        let vms = vms.collect::<Result<Vec<_>, _>>()?;
        let ended = vms.iter().map(|vm| Ok(Ended { name: vm.name().clone(), end: vm.wait()? }));
        let ended = ended.collect::<Result<Vec<_>, crate::failure::Failure>>()?;
        let line = |Ended { name, end }: &Ended| format!("{name}: status {}, {}\n", end.status, end.message);
        print(&ended, self.json, |ended| ended.iter().map(line).collect())?;
        Ok(ended.last().map_or(Status::Success, |ended| Status::of_code(ended.end.status)))
    }
}
