//! The two ways to get a VM, shared by the command line and the API. Both print the guest's console on standard output.

use std::path::Path;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use volt_vmm::config::{Devices, Overrides};
use volt_vmm::{Console, RestoreOptions, Result, Snapshot, Store, Vm, VmConfig};

/// Boots what `config` says.
pub(crate) fn boot(config: VmConfig) -> Result<Vm> {
    make_room_for(&config.devices);
    Vm::builder().config(config).console(Console::stdout()).start()
}

/// Restores the snapshot in directory `dir`; running if `resume`, paused otherwise. With `lent_thread` the guest waits for
/// [`Vm::lend_thread`].
pub(crate) fn load(dir: &Path, overrides: Overrides, resume: bool, lent_thread: bool) -> Result<Vm> {
    let (store, name) = Store::split(dir)?;
    let options = RestoreOptions { console: Console::stdout(), resume, lent_thread, overrides, pool: None };
    let snapshot = Snapshot::open(&store, &name)?;
    make_room_for(&snapshot.config().devices);
    snapshot.restore_with(options)
}

/// Every connection over vsock takes a descriptor, and what a process may have at first is few.
fn make_room_for(devices: &Devices) {
    if devices.vsock.is_some() {
        let limit = getrlimit(Resource::Nofile);
        // A host that refuses leaves the guest with fewer connections.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    }
}
