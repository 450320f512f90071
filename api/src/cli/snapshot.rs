//! `volt-vmm snapshot`: takes one of a running VM, through its API, or works on the files of one (`snapshot_files`).

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Outcome;
use super::packing::{Memory, PackingArgs};
use super::snapshot_files::{Convert, Inspect, Verify};
use crate::exit::Status;
use crate::failure::Failure;
use crate::rest::CreateSnapshot;
use crate::{client, progress};

/// Take a snapshot of a running VM, or work on one that there is
#[derive(Debug, Args)]
pub(crate) struct Snapshot {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Create(Create),
    Inspect(Inspect),
    Verify(Verify),
    Convert(Convert),
}

/// Snapshot the VM behind an API socket into a new directory; the VM goes on
#[derive(Debug, Args)]
pub(crate) struct Create {
    /// Directory to be made
    pub(super) dir: PathBuf,

    /// The API socket that the VM's volt-vmm was started with
    #[arg(long, value_name = "SOCKET")]
    pub(super) api_socket: PathBuf,

    /// Pack the memory: lz4, zstd or zstd:LEVEL (1 to 22); none leaves it as it is
    #[arg(long, value_name = "HOW", default_value = "none")]
    pub(super) compress: Memory,

    #[command(flatten)]
    pub(super) packing: PackingArgs,
}

impl Snapshot {
    pub(crate) fn execute(self) -> Outcome {
        match self.command {
            Command::Create(create) => create.execute(),
            Command::Inspect(inspect) => inspect.execute(),
            Command::Verify(verify) => verify.execute(),
            Command::Convert(convert) => convert.execute(),
        }
    }
}

impl Create {
    /// A snapshot as usual.
    pub(super) fn of(dir: PathBuf, api_socket: PathBuf) -> Self {
        Self { dir, api_socket, compress: Memory::Raw, packing: PackingArgs::default() }
    }

    pub(crate) fn execute(self) -> Outcome {
        // The server may have another working directory.
        let snapshot_path = std::path::absolute(&self.dir).map_err(|source| {
            Failure::system(format!("find the directory {}", self.dir.display()), source)
        })?;
        let packing = self.packing.of(self.compress)?;
        let request = CreateSnapshot {
            snapshot_path,
            snapshot_type: None,
            mem_file_path: None,
            compress: packing.map(|packing| packing.compression),
            chunk_size: packing.map(|packing| packing.chunk_len),
            least_saving: packing.map(|packing| packing.least_saving),
        };
        progress::during("taking the snapshot", || {
            client::put(&self.api_socket, "/snapshot/create", &request)
        })?;
        Ok(Status::Success)
    }
}
