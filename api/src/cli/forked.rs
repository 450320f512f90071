//! `volt-vmm forked`: the command of a fork's child, which only its parent starts.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::Outcome;
use crate::process::fork::child_arguments;
use crate::session::forked_child;

/// Receive a VM from the volt-vmm that started this process
#[derive(Debug, Args)]
pub(crate) struct ForkedCommand {
    /// Serve the REST API at this unix socket
    #[arg(long, value_name = "SOCKET")]
    api_socket: PathBuf,

    /// Name of the VM
    #[arg(long, value_name = "NAME")]
    id: String,
}

impl ForkedCommand {
    /// Parses the arguments of [`child_arguments`] after the program's name. Returns `None` for others.
    pub(super) fn recognize(arguments: &[OsString]) -> Option<Self> {
        let [_, _, _, api_socket, _, id] = arguments else { return None };
        let found = Self { api_socket: api_socket.into(), id: id.to_str()?.to_owned() };
        let same = child_arguments(&found.api_socket, &found.id) == arguments[1..];
        same.then_some(found)
    }

    pub(crate) fn execute(self) -> Outcome {
        forked_child::run(&self.api_socket, self.id)
    }
}
