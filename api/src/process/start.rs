//! Boots and restores of VMs, for the command line and the API.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use volt_vmm::config::{Devices, Overrides};
use volt_vmm::{
    Console, LentVm, MemoryHandler, MetadataStore, Pool, ProvisionalVm, RestoreOptions, Result, Snapshot,
    SnapshotFiles, Store, Vm, VmConfig,
};

use crate::descriptors::allow_descriptors;
use crate::process::guest_note::GuestNote;
use crate::process::{fault_signals, home};

/// Boots a VM with this configuration.
pub(crate) fn boot(config: VmConfig, console: Console) -> Result<Vm> {
    raise_limits_for(&config.devices);
    Vm::builder().config(config).console(console).start()
}

/// The place of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SnapshotPlace {
    /// A directory.
    Directory(PathBuf),
    /// Two files.
    Files(SnapshotFiles),
    /// A state file, whose memory a handler has.
    Handled(PathBuf, MemoryHandler),
}

impl SnapshotPlace {
    /// The state file `path` and the memory file, if there is one, otherwise the directory `path`.
    pub(crate) fn of(path: PathBuf, memory: Option<PathBuf>) -> Self {
        match memory {
            Some(memory) => Self::Files(SnapshotFiles::new(path, memory)),
            None => Self::Directory(path),
        }
    }
}

/// The memory handler at a socket, with a patience in seconds instead of the default.
pub(crate) fn handler(socket: &Path, patience: Option<u64>) -> MemoryHandler {
    let handler = MemoryHandler::new(socket);
    let patience = patience.map_or(handler.patience, Duration::from_secs);
    handler.patience(patience)
}

/// Restores an opened snapshot, whose note becomes that of this process's VM.
pub(crate) fn restore(snapshot: &Snapshot, options: RestoreOptions) -> Result<Vm> {
    let vm = snapshot.restore_with(prepared(snapshot, options))?;
    GuestNote::in_snapshot(snapshot).install();
    Ok(vm)
}

/// As [`restore`]. The calling thread will run the first vCPU.
pub(crate) fn restore_lent(snapshot: &Snapshot, options: RestoreOptions) -> Result<LentVm> {
    let vm = snapshot.restore_lent(prepared(snapshot, options.console(home::console())))?;
    GuestNote::in_snapshot(snapshot).install();
    Ok(vm)
}

/// Opens a snapshot.
pub(crate) fn open(place: &SnapshotPlace, options: &RestoreOptions) -> Result<Snapshot> {
    match place {
        SnapshotPlace::Directory(dir) => {
            let (store, name) = Store::split(dir)?;
            Snapshot::open_allowing(&store, &name, &options.allowed)
        }
        SnapshotPlace::Files(files) => Snapshot::open_files(files),
        SnapshotPlace::Handled(state, handler) => Snapshot::open_handled(state, handler),
    }
}

/// Restores a snapshot from the parent of a fork into a prewarmed VM, and leaves the VM paused.
pub(crate) fn take_over(
    snapshot: &Snapshot,
    overrides: Overrides,
    metadata: MetadataStore,
    pool: Arc<Pool>,
) -> Result<ProvisionalVm> {
    let options = RestoreOptions::default().paused().overrides(overrides).metadata(metadata);
    let options = options.pool(Some(pool)).console(home::console());
    snapshot.restore_provisionally(prepared(snapshot, options))
}

/// Prepares this process for a restore.
fn prepared(snapshot: &Snapshot, options: RestoreOptions) -> RestoreOptions {
    fault_signals::install_handlers();
    raise_limits_for(&snapshot.config().devices);
    options
}

/// Raises the limit of descriptors for a vsock device, each of whose connections takes one.
fn raise_limits_for(devices: &Devices) {
    if devices.vsock.is_some() {
        allow_descriptors();
    }
}
