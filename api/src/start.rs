//! The two ways to get a VM, shared by the command line and the API. Both print the guest's console on standard output.

use std::path::Path;

use volt_vmm::config::Overrides;
use volt_vmm::{Console, RestoreOptions, Result, Snapshot, Store, Vm, VmConfig};

/// Boots what `config` says.
pub(crate) fn boot(config: VmConfig) -> Result<Vm> {
    Vm::builder().config(config).console(Console::stdout()).start()
}

/// Restores the snapshot in directory `dir`; running if `resume`, paused otherwise. With `lent_thread` the guest waits for
/// [`Vm::lend_thread`].
pub(crate) fn load(dir: &Path, overrides: Overrides, resume: bool, lent_thread: bool) -> Result<Vm> {
    let (store, name) = Store::split(dir)?;
    let options = RestoreOptions { console: Console::stdout(), resume, lent_thread, overrides };
    Snapshot::open(&store, &name)?.restore_with(options)
}
