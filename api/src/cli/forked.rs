//! `volt-vmm forked`: what a fork's child is started as, by its parent and nobody else.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::Outcome;
use crate::process::fork::child_arguments;
use crate::session::forked_child;

/// Take over a VM from the volt-vmm that started this one
#[derive(Debug, Args)]
pub(crate) struct Forked {
    /// Serve the REST API at this unix socket
    #[arg(long, value_name = "SOCKET")]
    api_socket: PathBuf,

    /// The VM's name
    #[arg(long)]
    id: String,
}

impl Forked {
    /// Whether these are those, after the program's name.
    pub(super) fn recognise(arguments: &[OsString]) -> Option<Self> {
        let [_, _, _, api_socket, _, id] = arguments else { return None };
        let found = Self { api_socket: api_socket.into(), id: id.to_str()?.to_owned() };
        let same = child_arguments(&found.api_socket, &found.id) == arguments[1..];
        same.then_some(found)
    }

    pub(crate) fn execute(self) -> Outcome {
        forked_child::run(&self.api_socket, self.id)
    }
}
