//! `volt-vmm forked`: the command of a fork's child, which only its parent starts.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::Outcome;
use crate::process::child_command::child_arguments;
use crate::process::confinement_choice::ConfinementChoice;
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

    /// Confinement of the process, as JSON
    #[arg(long, value_name = "JSON", value_parser = parse_confinement)]
    confinement: ConfinementChoice,
}

fn parse_confinement(text: &str) -> serde_json::Result<ConfinementChoice> {
    serde_json::from_str(text)
}

impl ForkedCommand {
    /// Parses the arguments of [`child_arguments`] after the program's name. Returns `None` for others.
    pub(super) fn recognize(arguments: &[OsString]) -> Option<Self> {
        let [_, _, _, api_socket, _, id, _, confinement] = arguments else { return None };
        let (id, confinement) = (id.to_str()?, confinement.to_str()?);
        let same = child_arguments(api_socket.as_ref(), id, confinement) == arguments[1..];
        let confinement = parse_confinement(confinement).ok().filter(|_| same)?;
        Some(Self { api_socket: api_socket.into(), id: id.to_owned(), confinement })
    }

    pub(crate) fn execute(self) -> Outcome {
        forked_child::run(&self.api_socket, self.id, self.confinement)
    }
}
