//! `volt-vmm snapshot`: takes one of a running VM, through its API, or works on the files of those there are (`snapshot_files`, `bench`).

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde::Deserialize;
use volt_vmm::config::devices::DiskConfig;
use volt_vmm::{Store, VmConfig, snapshot};

use super::Outcome;
use super::bench::Bench;
use super::packing::{Memory, PackingArgs};
use super::snapshot_files::{Convert, Inspect, Verify};
use crate::client;
use crate::failure::Failure;
use crate::output::progress;
use crate::process::exit::Status;
use crate::rest::{CreateSnapshot, SnapshotType};

/// Take a snapshot of a running VM, or work on those that there are
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
    Merge(Merge),
    Bench(Bench),
}

/// Fold a diff into its base: a new snapshot that needs neither of them
#[derive(Debug, Args)]
pub(crate) struct Merge {
    /// The snapshot that is a diff
    diff: PathBuf,

    /// Directory to be made
    to: PathBuf,

    /// Allow a diff that this user's volt-vmm did not write to have its base in this directory. May be given more than once
    #[arg(long = "allow-path", value_name = "DIR")]
    allowed: Vec<PathBuf>,
}

/// Snapshot the VM behind an API socket into a new directory; the VM goes on
#[derive(Debug, Args)]
pub(crate) struct Create {
    /// Directory to be made
    pub(super) dir: PathBuf,

    /// Save only what differs from the snapshot that the VM was restored from, or from the last full one taken of it
    #[arg(long)]
    pub(super) diff: bool,

    /// Let the balloon take all that the guest can spare first, so that its page cache is not saved; it takes it back as it goes on. For
    /// a VM with --balloon statistics=SECONDS
    #[arg(long)]
    pub(super) trim: bool,

    /// Fail rather than let the guest stand still for longer than this. A guest that writes too fast has 10 s
    /// to write less, and 5 pauses that turn out too long. No limit unless given
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) max_pause: Option<u64>,

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
            Command::Merge(merge) => merge.execute(),
            Command::Bench(bench) => bench.execute(),
        }
    }
}

impl Create {
    /// A snapshot as usual.
    pub(super) fn of(dir: PathBuf, api_socket: PathBuf) -> Self {
        Self {
            dir,
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
        let snapshot_path = std::path::absolute(&self.dir).map_err(|source| {
            Failure::system(format!("find the directory {}", self.dir.display()), source)
        })?;
        let snapshot_type = self.diff.then_some(SnapshotType::Diff);
        let packing = self.packing.of(self.compress)?;
        let request = CreateSnapshot {
            snapshot_path,
            snapshot_type,
            mem_file_path: None,
            compress: packing.map(|packing| packing.compression),
            chunk_size: packing.map(|packing| packing.chunk_len),
            least_saving: packing.map(|packing| packing.least_saving),
            trim: self.trim,
            max_pause_ms: self.max_pause,
        };
        progress::during("taking the snapshot", || {
            client::put(&self.api_socket, "/snapshot/create", &request)
        })?;
        warn_of_disks_that_go_on(&self.api_socket);
        Ok(Status::Success)
    }
}

/// What `GET /v1/vm` says.
#[derive(Deserialize)]
struct Described {
    state: String,
    config: Option<VmConfig>,
}

/// A guest that goes on changes the disks that it writes to without a layer.
fn warn_of_disks_that_go_on(socket: &Path) {
    // One that cannot be asked any more has ended, and writes nothing.
    let Ok(Described { state, config }) = client::get(socket, "/v1/vm") else { return };
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
        progress::measured("merging", |progress| snapshot::merge(&diff, &to, &name, progress))?;
        Ok(Status::Success)
    }
}
