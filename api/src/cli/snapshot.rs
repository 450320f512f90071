//! `volt-vmm snapshot`: takes a snapshot of a running VM through its API, or works on the files of snapshots
//! (`snapshot_files`, `bench`).

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use volt_vmm::config::devices::DiskConfig;
use volt_vmm::{Store, snapshot};

use super::Outcome;
use super::bench::Bench;
use super::inspect::VmInfo;
use super::packing::{Memory, PackingArgs};
use super::snapshot_files::{Convert, InspectSnapshot, Verify};
use crate::client;
use crate::failure::Failure;
use crate::output::progress;
use crate::process::exit::Status;
use crate::rest::{CreateSnapshot, SnapshotType};

/// Take a snapshot of a running VM, or work on a snapshot's files
#[derive(Debug, Args)]
pub(crate) struct Snapshot {
    #[command(subcommand)]
    command: SnapshotCommand,
}

#[derive(Debug, Subcommand)]
enum SnapshotCommand {
    Create(Create),
    Inspect(InspectSnapshot),
    Verify(Verify),
    Convert(Convert),
    Merge(Merge),
    Bench(Bench),
}

/// Merge a diff with its base into a new, independent snapshot
#[derive(Debug, Args)]
pub(crate) struct Merge {
    /// Directory of the diff snapshot
    diff: PathBuf,

    /// Directory to create for the new snapshot
    #[arg(value_name = "NEW")]
    to: PathBuf,

    /// Allow a diff that this user's volt-vmm did not write to have its base in this directory. Repeatable
    #[arg(long = "allow-path", value_name = "DIR")]
    allowed: Vec<PathBuf>,
}

/// Snapshot the VM behind an API socket into a new directory; the VM goes on
#[derive(Debug, Args)]
pub(crate) struct Create {
    /// Directory to create for the snapshot; with --memory-file, the state file to write
    pub(super) dir: PathBuf,

    /// Write the memory to this file, raw. Both files replace those that are there. With --diff, it has the
    /// pages that changed since the VM's last snapshot, and is sparse elsewhere
    #[arg(long, value_name = "FILE")]
    pub(super) memory_file: Option<PathBuf>,

    /// Save only the changes since the snapshot that the VM was restored from, or since its last full
    /// snapshot
    #[arg(long)]
    pub(super) diff: bool,

    /// Drop the guest's page cache first, by inflating the balloon, so that the snapshot is smaller. Needs
    /// --balloon statistics=SECONDS
    #[arg(long)]
    pub(super) trim: bool,

    /// Fail instead of pausing the guest for longer than this. A guest that writes too fast has 10 s to slow
    /// down, and at most 5 pauses that turn out too long [default: no limit]
    #[arg(long, value_name = "MILLISECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) max_pause: Option<u64>,

    /// API socket of the VM's volt-vmm
    #[arg(long, value_name = "SOCKET")]
    pub(super) api_socket: PathBuf,

    /// Compress the memory: lz4, zstd or zstd:LEVEL (1 to 22); none stores it raw
    #[arg(long, value_name = "CODEC", default_value = "none")]
    pub(super) compress: Memory,

    #[command(flatten)]
    pub(super) packing: PackingArgs,
}

impl Snapshot {
    pub(crate) fn execute(self) -> Outcome {
        match self.command {
            SnapshotCommand::Create(create) => create.execute(),
            SnapshotCommand::Inspect(inspect) => inspect.execute(),
            SnapshotCommand::Verify(verify) => verify.execute(),
            SnapshotCommand::Convert(convert) => convert.execute(),
            SnapshotCommand::Merge(merge) => merge.execute(),
            SnapshotCommand::Bench(bench) => bench.execute(),
        }
    }
}

impl Create {
    /// Makes the command for a full, raw snapshot.
    pub(super) fn of(dir: PathBuf, api_socket: PathBuf) -> Self {
        Self {
            dir,
            memory_file: None,
            diff: false,
            trim: false,
            max_pause: None,
            api_socket,
            compress: Memory::Raw,
            packing: PackingArgs::default(),
        }
    }

    pub(crate) fn execute(self) -> Outcome {
        // The server may have another working directory.
        let snapshot_path = absolute(&self.dir)?;
        let mem_file_path = self.memory_file.as_deref().map(absolute).transpose()?;
        let snapshot_type = self.diff.then_some(SnapshotType::Diff);
        let packing = self.packing.of(self.compress)?;
        let request = CreateSnapshot {
            snapshot_path,
            snapshot_type,
            mem_file_path,
            compress: packing.map(|packing| packing.compression),
            chunk_size: packing.map(|packing| packing.chunk_len),
            least_saving: packing.map(|packing| packing.least_saving),
            trim: self.trim,
            max_pause_ms: self.max_pause,
        };
        progress::during("taking the snapshot", || {
            client::put(&self.api_socket, "/snapshot/create", &request)
        })?;
        warn_of_disks_without_layer(&self.api_socket);
        Ok(Status::Success)
    }
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    let failed = |source| Failure::system(format!("find the absolute path of {}", path.display()), source);
    std::path::absolute(path).map_err(failed)
}

/// Warns of disks without a layer, which a guest that runs on changes after its snapshot.
fn warn_of_disks_without_layer(socket: &Path) {
    // A VM whose API does not answer has ended, and writes nothing.
    let Ok(VmInfo { state, config }) = VmInfo::get(socket) else { return };
    let disks = config.into_iter().filter(|_| state == "running").flat_map(|config| config.devices.disks);
    for disk in disks.filter(DiskConfig::is_written_in_place) {
        eprintln!("volt-vmm: warning: {}", disk.warning_of_a_snapshot_while_it_runs());
    }
}

impl Merge {
    fn execute(self) -> Outcome {
        let (store, name) = Store::split(&self.diff)?;
        let diff = volt_vmm::Snapshot::open_allowing(&store, &name, &self.allowed)?;
        let (to, name) = Store::split(&self.to)?;
        progress::with_bar("merging", |progress| snapshot::merge(&diff, &to, &name, progress))?;
        Ok(Status::Success)
    }
}
