//! `volt-vmm rewind`: resets a restored VM to its snapshot, through its API.

use std::path::PathBuf;

use clap::Args;

use super::Outcome;
use crate::client;
use crate::process::exit::Status;

/// Reset a restored VM to the instant of its snapshot, in the same process
#[derive(Debug, Args)]
pub(crate) struct Rewind {
    /// API socket of the VM's volt-vmm
    #[arg(long, value_name = "SOCKET")]
    api_socket: PathBuf,
}

impl Rewind {
    pub(crate) fn execute(self) -> Outcome {
        client::put(&self.api_socket, "/v1/vm/rewind", &())?;
        Ok(Status::Success)
    }
}
