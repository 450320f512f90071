//! The ways to get a VM, shared by the command line and the API. All print the guest's console on standard output.

use std::path::Path;
use std::sync::Arc;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use volt_vmm::config::{Devices, Overrides};
use volt_vmm::{Console, Pool, RestoreOptions, Result, Snapshot, Store, Vm, VmConfig};

use crate::unreadable;

/// This program, as a process of its own: a pager is one. It is there even where its file has been replaced.
pub(crate) const PROGRAM: &str = "/proc/self/exe";

/// Boots what `config` says.
pub(crate) fn boot(config: VmConfig) -> Result<Vm> {
    make_room_for(&config.devices);
    Vm::builder().config(config).console(Console::stdout()).start()
}

/// Restores the snapshot in directory `dir`; running if `resume`, paused otherwise. With `lent_thread` the guest waits for
/// [`Vm::lend_thread`].
pub(crate) fn load(dir: &Path, options: RestoreOptions) -> Result<Vm> {
    let (store, name) = Store::split(dir)?;
    restore(&Snapshot::open(&store, &name)?, options)
}

/// Restores what another process has handed over into a VM that was made ahead of time. Its guest stands still.
pub(crate) fn take_over(snapshot: &Snapshot, overrides: Overrides, ready: Arc<Pool>) -> Result<Vm> {
    let pool = Some(ready);
    restore(snapshot, RestoreOptions { resume: false, overrides, pool, ..RestoreOptions::default() })
}

fn restore(snapshot: &Snapshot, options: RestoreOptions) -> Result<Vm> {
    unreadable::end_with_reason();
    make_room_for(&snapshot.config().devices);
    snapshot.restore_with(RestoreOptions { console: Console::stdout(), ..options })
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
