//! The ways to get a VM, shared by the command line and the API. All print the guest's console on standard output.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Deserialize;
use volt_vmm::config::{Devices, Overrides};
use volt_vmm::{Console, LentVm, PagerOptions, Pool, RestoreOptions, Result, Snapshot, Store, Vm, VmConfig};

use crate::process::fault_signals;

/// This program, as a process of its own: a pager is one. It is there even where its file has been replaced.
pub(crate) const PROGRAM: &str = "/proc/self/exe";

/// A pager that VMs share, which is this program too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SharedPager {
    /// Where pagers are found, if not where they usually are.
    pub(crate) directory: Option<PathBuf>,
    /// The VMs of this user that share it, if not those that name none.
    pub(crate) group: Option<String>,
    /// Seconds for which it is waited, if not as long as usually.
    pub(crate) patience: Option<u64>,
}

impl From<SharedPager> for PagerOptions {
    fn from(SharedPager { directory, group, patience }: SharedPager) -> Self {
        let usual = Self::new(PROGRAM);
        Self {
            directory: directory.unwrap_or(usual.directory),
            group,
            patience: patience.map_or(usual.patience, Duration::from_secs),
            program: usual.program,
        }
    }
}

/// Boots what `config` says.
pub(crate) fn boot(config: VmConfig) -> Result<Vm> {
    make_room_for(&config.devices);
    Vm::builder().config(config).console(Console::stdout()).start()
}

/// Restores the snapshot in directory `dir`.
pub(crate) fn load(dir: &Path, options: RestoreOptions) -> Result<Vm> {
    let snapshot = open(dir, &options)?;
    snapshot.restore_with(prepared(&snapshot, options))
}

/// Restores the snapshot in directory `dir`. The calling thread will run the first vCPU.
pub(crate) fn load_lent(dir: &Path, options: RestoreOptions) -> Result<LentVm> {
    let snapshot = open(dir, &options)?;
    snapshot.restore_lent(prepared(&snapshot, options))
}

fn open(dir: &Path, options: &RestoreOptions) -> Result<Snapshot> {
    let (store, name) = Store::split(dir)?;
    Snapshot::open_allowing(&store, &name, &options.allowed)
}

/// Restores what another process has handed over into a VM that was made ahead of time. Its guest stands still.
pub(crate) fn take_over(snapshot: &Snapshot, overrides: Overrides, ready: Arc<Pool>) -> Result<Vm> {
    let pool = Some(ready);
    let options = RestoreOptions { resume: false, overrides, pool, ..RestoreOptions::default() };
    snapshot.restore_with(prepared(snapshot, options))
}

/// Prepares this process for a restore, and directs the guest's output to standard output.
fn prepared(snapshot: &Snapshot, options: RestoreOptions) -> RestoreOptions {
    fault_signals::end_with_reason();
    make_room_for(&snapshot.config().devices);
    RestoreOptions { console: Console::stdout(), ..options }
}

/// Every connection over vsock takes a descriptor, and what a process may have at first is few.
fn make_room_for(devices: &Devices) {
    // A host that refuses leaves the guest with fewer connections.
    if devices.vsock.is_some() {
        allow_descriptors();
    }
}

/// Lets this process have as many descriptors as it may.
pub(crate) fn allow_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}
