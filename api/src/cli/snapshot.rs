//! `volt-vmm snapshot`: works on the snapshots of a running VM, through its API.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Outcome;
use crate::exit::Status;
use crate::failure::Failure;
use crate::rest::CreateSnapshot;
use crate::{client, progress};

/// Take a snapshot of a running VM
#[derive(Debug, Args)]
pub(crate) struct Snapshot {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Create(Create),
}

/// Snapshot the VM behind an API socket into a new directory; the VM goes on
#[derive(Debug, Args)]
pub(crate) struct Create {
    /// Directory to be made
    pub(super) dir: PathBuf,

    /// The API socket that the VM's volt-vmm was started with
    #[arg(long, value_name = "SOCKET")]
    pub(super) api_socket: PathBuf,
}

impl Snapshot {
    pub(crate) fn execute(self) -> Outcome {
        match self.command {
            Command::Create(create) => create.execute(),
        }
    }
}

impl Create {
    pub(crate) fn execute(self) -> Outcome {
        // The server may have another working directory.
        let snapshot_path = std::path::absolute(&self.dir).map_err(|source| {
            Failure::system(format!("find the directory {}", self.dir.display()), source)
        })?;
        let request = CreateSnapshot { snapshot_path, snapshot_type: None, mem_file_path: None };
        progress::during("taking the snapshot", || {
            client::put(&self.api_socket, "/snapshot/create", &request)
        })?;
        Ok(Status::Success)
    }
}
