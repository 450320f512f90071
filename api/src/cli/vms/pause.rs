//! `volt-vmm pause` and `resume`.

use clap::Args;
use serde_json::json;

use super::target::Target;
use crate::cli::{Outcome, complete};
use crate::client;
use crate::failure::Failure;
use crate::messages::say;
use crate::process::exit::Status;

/// Pause VMs: vCPUs and devices stand still until they are resumed
///
/// Example: volt-vmm pause web
#[derive(Debug, Args)]
pub(crate) struct Pause {
    /// Names of the VMs, beginnings of their ids, or paths of their API sockets
    #[arg(value_name = "VM", required = true, add = complete::living_vms())]
    vms: Vec<String>,
}

/// Resume paused VMs
///
/// Example: volt-vmm resume web
#[derive(Debug, Args)]
pub(crate) struct Resume {
    /// Names of the VMs, beginnings of their ids, or paths of their API sockets
    #[arg(value_name = "VM", required = true, add = complete::living_vms())]
    vms: Vec<String>,
}

impl Pause {
    pub(crate) fn execute(self) -> Outcome {
        set_state(&self.vms, "Paused")
    }
}

impl Resume {
    pub(crate) fn execute(self) -> Outcome {
        set_state(&self.vms, "Resumed")
    }
}

fn set_state(vms: &[String], state: &str) -> Outcome {
    for_each(vms, |word| client::patch(Target::find(word)?.api()?, "/vm", &json!({ "state": state })))
}

/// Does an act for each VM, also after the failure of one.
///
/// # Errors
/// The last failure. Earlier ones are printed.
pub(in crate::cli) fn for_each<T>(
    vms: impl IntoIterator<Item = T>,
    mut act: impl FnMut(T) -> Result<(), Failure>,
) -> Outcome {
    let mut failed = None;
    for vm in vms {
        if let Err(failure) = act(vm)
            && let Some(earlier) = failed.replace(failure)
        {
            say(format!("volt-vmm: {}", earlier.report(crate::cures::as_option)));
        }
    }
    failed.map_or(Ok(Status::Success), Err)
}
