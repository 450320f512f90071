//! `volt-vmm --api-socket S` alone: a process that waits for a load or a boot through its API.

use std::path::PathBuf;

use super::Outcome;
use crate::session::Session;

/// See the module.
#[derive(Debug)]
pub(crate) struct Empty {
    /// Where the API is served.
    pub(super) api_socket: PathBuf,
}

impl Empty {
    pub(crate) fn execute(self) -> Outcome {
        Session::open(Some(&self.api_socket))?.wait_for_vm()
    }
}
