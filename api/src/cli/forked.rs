//! `volt-vmm forked`: what a fork's child is started as, by its parent and nobody else.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;

use super::{FORKED, Outcome};
use crate::process::fork::child;

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
    /// The arguments of a child, which are always the same: setting up clap takes longer than exec.
    pub(crate) fn arguments(api_socket: &Path, id: &str) -> [OsString; 5] {
        let word = OsString::from;
        [word(FORKED), word("--api-socket"), api_socket.into(), word("--id"), word(id)]
    }

    /// Whether these are those, after the program's name.
    pub(super) fn recognise(arguments: &[OsString]) -> Option<Self> {
        let [_, _, _, api_socket, _, id] = arguments else { return None };
        let found = Self { api_socket: api_socket.into(), id: id.to_str()?.to_owned() };
        let same = Self::arguments(&found.api_socket, &found.id) == arguments[1..];
        same.then_some(found)
    }

    pub(crate) fn execute(self) -> Outcome {
        child::run(&self.api_socket, self.id)
    }
}
