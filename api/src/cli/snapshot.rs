//! `volt-vmm snapshot`: takes snapshots of a running VM through its API, and works on those that were taken.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use volt_vmm::{Store, snapshot};

use super::Outcome;
use crate::exit::Status;
use crate::failure::Failure;
use crate::rest::{CreateSnapshot, SnapshotType};
use crate::{client, progress};

/// Take snapshots of running VMs, and work on snapshots
#[derive(Debug, Args)]
pub(crate) struct Snapshot {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Create(Create),
    Merge(Merge),
}

/// Fold a diff into its base: a new snapshot that needs neither of them
#[derive(Debug, Args)]
pub(crate) struct Merge {
    /// The snapshot that is a diff
    diff: PathBuf,

    /// Directory to be made
    to: PathBuf,
}

/// Snapshot the VM behind an API socket into a new directory; the VM goes on
#[derive(Debug, Args)]
pub(crate) struct Create {
    /// Directory to be made
    pub(super) dir: PathBuf,

    /// Save only what differs from the snapshot that the VM was restored from, or from the last full one taken of it
    #[arg(long)]
    pub(super) diff: bool,

    /// The API socket that the VM's volt-vmm was started with
    #[arg(long, value_name = "SOCKET")]
    pub(super) api_socket: PathBuf,
}

impl Snapshot {
    pub(crate) fn execute(self) -> Outcome {
        match self.command {
            Command::Create(create) => create.execute(),
            Command::Merge(merge) => merge.execute(),
        }
    }
}

impl Create {
    pub(crate) fn execute(self) -> Outcome {
        // The server may have another working directory.
        let snapshot_path = std::path::absolute(&self.dir).map_err(|source| {
            Failure::system(format!("find the directory {}", self.dir.display()), source)
        })?;
        let snapshot_type = self.diff.then_some(SnapshotType::Diff);
        let request = CreateSnapshot { snapshot_path, snapshot_type, mem_file_path: None };
        progress::during("taking the snapshot", || {
            client::put(&self.api_socket, "/snapshot/create", &request)
        })?;
        Ok(Status::Success)
    }
}

impl Merge {
    fn execute(self) -> Outcome {
        let (store, name) = Store::split(&self.diff)?;
        let diff = volt_vmm::Snapshot::open(&store, &name)?;
        let (to, name) = Store::split(&self.to)?;
        progress::during("merging", || snapshot::merge(&diff, &to, &name))?;
        Ok(Status::Success)
    }
}
