//! `volt-vmm snapshot`: takes a snapshot of a running VM through its API, or works on the files of snapshots
//! (`files`, `stored`, `bench`).

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use volt_vmm::config::devices::DiskConfig;
use volt_vmm::{Error, Store, snapshot};

mod files;
mod stored;

use super::Outcome;
use super::bench::Bench;
use super::complete;
use super::followed::post_followed;
use super::packing::{Memory, PackingArgs};
use super::snapshot_place;
use super::vms::inspect::VmInfo;
use super::vms::target::Target;
use crate::failure::Failure;
use crate::messages::say;
use crate::output::print::print;
use crate::output::progress;
use crate::process::exit::Status;
use crate::rest::{Kind, NewSnapshot, Taken};
use files::{Convert, InspectSnapshot, Verify};
use stored::{List, PruneSnapshots, Remove};

/// Take a snapshot of a running VM, or work on a snapshot's files
#[derive(Debug, Args)]
pub(crate) struct Snapshot {
    #[command(subcommand)]
    command: SnapshotCommand,
}

#[derive(Debug, Subcommand)]
enum SnapshotCommand {
    Create(Create),
    #[command(visible_alias = "list")]
    Ls(List),
    Inspect(InspectSnapshot),
    Verify(Verify),
    Convert(Convert),
    Merge(Merge),
    Rm(Remove),
    Prune(PruneSnapshots),
    Bench(Bench),
}

/// Merge a diff with its base into a new, independent snapshot
///
/// Example: volt-vmm snapshot merge later whole
#[derive(Debug, Args)]
pub(crate) struct Merge {
    /// Name of the diff snapshot, or its directory
    #[arg(add = complete::snapshots_and_paths())]
    diff: PathBuf,

    /// Name of the new snapshot, or the directory to create for it
    #[arg(value_name = "NEW")]
    to: PathBuf,

    /// Allow a diff that this user's volt-vmm did not write to have its base in this directory. Repeatable
    #[arg(long = "allow-path", value_name = "DIR")]
    allowed: Vec<PathBuf>,

    /// Print the new snapshot as JSON, as `snapshot inspect --summarized` does
    #[arg(long)]
    json: bool,
}

/// Take a snapshot of a running VM; the VM goes on
///
/// Example: volt-vmm snapshot create web warm
#[derive(Debug, Args)]
pub(crate) struct Create {
    /// The VM: its name, the beginning of its id, or the path of its API socket. Then the snapshot: a name,
    /// or the directory to create; with --memory-file, the state file to write
    #[arg(
        value_names = ["VM", "SNAPSHOT"],
        num_args = 1..=2,
        required = true,
        add = complete::vms_and_snapshots(),
    )]
    words: Vec<PathBuf>,

    /// Print pause, passes, pages and bytes as JSON
    #[arg(long)]
    json: bool,

    /// Write the memory to this file, raw. Both files replace those that are there. With --diff, it has the
    /// pages that changed since the VM's last snapshot, and is sparse elsewhere
    #[arg(long, value_name = "FILE")]
    memory_file: Option<PathBuf>,

    /// Save only the changes since the snapshot that the VM was restored from, or since its last full
    /// snapshot
    #[arg(long)]
    diff: bool,

    /// Drop the guest's page cache first, by inflating the balloon, so that the snapshot is smaller. Needs
    /// --balloon statistics=SECONDS
    #[arg(long)]
    trim: bool,

    /// Have the guest's agent run the programs in /etc/volt/pre-snapshot.d and freeze all other processes
    /// first, so that each restored VM gets entropy, time and names of its own before they go on. For VMs
    /// that run an image
    #[arg(long)]
    quiesce: bool,

    /// Fail instead of pausing the guest for longer than this. A guest that writes too fast has 10 s to slow
    /// down, and at most 5 pauses that turn out too long [default: no limit]
    #[arg(long, value_name = "MILLISECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    max_pause: Option<u64>,

    /// The path of the VM's API socket, in place of the VM
    #[arg(long, value_name = "SOCKET", hide = true)]
    api_socket: Option<PathBuf>,

    /// Compress the memory: lz4, zstd or zstd:LEVEL (1 to 22); none stores it raw
    #[arg(long, value_name = "CODEC", default_value = "none")]
    compress: Memory,

    #[command(flatten)]
    packing: PackingArgs,
}

impl Snapshot {
    pub(crate) fn execute(self) -> Outcome {
        match self.command {
            SnapshotCommand::Create(create) => create.execute(),
            SnapshotCommand::Ls(list) => list.execute(),
            SnapshotCommand::Rm(remove) => remove.execute(),
            SnapshotCommand::Prune(prune) => prune.execute(),
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
            words: vec![dir],
            json: false,
            memory_file: None,
            diff: false,
            trim: false,
            quiesce: false,
            max_pause: None,
            api_socket: Some(api_socket),
            compress: Memory::Raw,
            packing: PackingArgs::default(),
        }
    }

    pub(crate) fn execute(self) -> Outcome {
        let (api_socket, place) = self.places()?;
        // The server may have another working directory.
        let path = absolute(&place)?;
        let memory_path = self.memory_file.as_deref().map(absolute).transpose()?;
        let kind = if self.diff { Kind::Diff } else { Kind::Full };
        let packing = self.packing.of(self.compress)?;
        let request = |operation| NewSnapshot {
            path: path.clone(),
            memory_path: memory_path.clone(),
            kind,
            compress: packing.map(|packing| packing.compression),
            chunk_size: packing.map(|packing| packing.chunk_len),
            least_saving: packing.map(|packing| packing.least_saving),
            trim: self.trim,
            quiesce: self.quiesce,
            max_pause_ms: self.max_pause,
            operation,
        };
        let taken: Taken = post_followed(&api_socket, "/v1/vm/snapshots", "taking the snapshot", request)?;
        warn_of_disks_without_layer(&api_socket);
        print(&taken, self.json, |_| String::new())?;
        Ok(Status::Success)
    }

    /// The API socket of the VM, and the place of the snapshot.
    fn places(&self) -> Result<(PathBuf, PathBuf), Failure> {
        match (&self.words[..], &self.api_socket) {
            ([place], Some(socket)) => Ok((socket.clone(), place.clone())),
            ([vm, place], None) => {
                let vm = Target::find(&vm.to_string_lossy())?.api()?.to_owned();
                let is_directory = self.memory_file.is_none();
                Ok((vm, if is_directory { snapshot_place::new(place)? } else { place.clone() }))
            }
            _ => {
                let problem = "give the VM and the snapshot: volt-vmm snapshot create VM SNAPSHOT".into();
                Err(Error::Config { field: "snapshot", problem }.into())
            }
        }
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
        say(format!("volt-vmm: warning: {}", disk.warning_of_a_snapshot_while_it_runs()));
    }
}

impl Merge {
    fn execute(self) -> Outcome {
        let new = snapshot_place::new_beside(&self.diff, &self.to)?;
        let (store, name) = Store::split(&snapshot_place::existing(&self.diff))?;
        let diff = volt_vmm::Snapshot::open_allowing(&store, &name, &self.allowed)?;
        let (to, name) = Store::split(&new)?;
        progress::with_bar("merging", |progress| snapshot::merge(&diff, &to, &name, progress))?;
        files::print_new((&to, &name), self.json)
    }
}
