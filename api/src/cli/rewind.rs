//! `volt-vmm rewind`: takes a restored VM back to its snapshot, through its API.

use std::path::PathBuf;

use clap::Args;

use super::Outcome;
use crate::client;
use crate::process::exit::Status;

/// Take a restored VM back to the instant of its snapshot, in the process that it runs in
#[derive(Debug, Args)]
pub(crate) struct Rewind {
    /// The API socket that the VM's volt-vmm was started with
    #[arg(long, value_name = "SOCKET")]
    api_socket: PathBuf,
}

impl Rewind {
    pub(crate) fn execute(self) -> Outcome {
        client::put(&self.api_socket, "/v1/vm/rewind", &())?;
        Ok(Status::Success)
    }
}
