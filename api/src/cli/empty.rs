//! `volt-vmm --api-socket S` alone: a process that waits for a load or a boot through its API.

use std::path::PathBuf;

use volt_vmm::{Pool, VmShape};

use super::Outcome;
use crate::process::vm_slot::Slot;
use crate::session::Session;

/// See the module.
#[derive(Debug)]
pub(crate) struct Empty {
    /// Where the API is served.
    pub(super) api_socket: PathBuf,
    /// What is to be ready when it comes.
    pub(super) prewarm: Option<VmShape>,
}

impl Empty {
    pub(crate) fn execute(self) -> Outcome {
        // One, for this process never runs another. Made first: who finds the socket finds the VM ready.
        let slot = match self.prewarm {
            Some(shape) => Slot::prewarmed_with(Pool::filled(shape, 1)?),
            None => Slot::new(),
        };
        Session::of(slot, Some(&self.api_socket))?.wait_for_vm()
    }
}
