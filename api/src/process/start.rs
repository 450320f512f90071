//! Boots and restores of VMs, for the command line and the API. The guest's console is standard output.

use std::path::PathBuf;
use std::sync::Arc;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use volt_vmm::config::{Devices, Overrides};
use volt_vmm::{
    Console, LentVm, Pool, ProvisionalVm, RestoreOptions, Result, Snapshot, SnapshotFiles, Store, Vm,
    VmConfig,
};

use crate::process::fault_signals;

/// Boots a VM with this configuration.
pub(crate) fn boot(config: VmConfig) -> Result<Vm> {
    raise_limits_for(&config.devices);
    Vm::builder().config(config).console(Console::stdout()).start()
}

/// The place of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SnapshotPlace {
    /// A directory.
    Directory(PathBuf),
    /// Two files.
    Files(SnapshotFiles),
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

/// Restores a snapshot.
pub(crate) fn load(place: &SnapshotPlace, options: RestoreOptions) -> Result<Vm> {
    let snapshot = open(place, &options)?;
    snapshot.restore_with(prepared(&snapshot, options))
}

/// Restores an opened snapshot. The calling thread will run the first vCPU.
pub(crate) fn restore_lent(snapshot: &Snapshot, options: RestoreOptions) -> Result<LentVm> {
    snapshot.restore_lent(prepared(snapshot, options))
}

/// Opens a snapshot.
pub(crate) fn open(place: &SnapshotPlace, options: &RestoreOptions) -> Result<Snapshot> {
    match place {
        SnapshotPlace::Directory(dir) => {
            let (store, name) = Store::split(dir)?;
            Snapshot::open_allowing(&store, &name, &options.allowed)
        }
        SnapshotPlace::Files(files) => Snapshot::open_files(files),
    }
}

/// Restores a snapshot from the parent of a fork into a prewarmed VM, and leaves the VM paused.
pub(crate) fn take_over(snapshot: &Snapshot, overrides: Overrides, pool: Arc<Pool>) -> Result<ProvisionalVm> {
    let pool = Some(pool);
    let options = RestoreOptions::default().paused().overrides(overrides).pool(pool);
    snapshot.restore_provisionally(prepared(snapshot, options))
}

/// Prepares this process for a restore, and directs the guest's console to standard output.
fn prepared(snapshot: &Snapshot, options: RestoreOptions) -> RestoreOptions {
    fault_signals::install_handlers();
    raise_limits_for(&snapshot.config().devices);
    options.console(Console::stdout())
}

/// Raises the limit of descriptors for a vsock device, each of whose connections takes one.
fn raise_limits_for(devices: &Devices) {
    if devices.vsock.is_some() {
        allow_descriptors();
    }
}

/// Raises this process's limit of descriptors to its hard limit. An error leaves the old limit.
pub(crate) fn allow_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}
