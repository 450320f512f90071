//! The run directory: a directory for each VM with a name. No daemon is needed, because the files tell all.
//!
//! ```text
//!   $XDG_RUNTIME_DIR/volt-vmm      /run/volt-vmm for root; mode 0700 (root.rs)
//!     .lock                        held while a name is claimed or freed
//!     NAME/
//!       lock                       a lock on it says that the VM lives
//!       vm.json                    id, name, process, origin and API socket (Record)
//!       config.json                configuration of the VM, once it runs
//!       api.sock serial.sock vsock console.sock
//!       serial-0.log serial-1.log  serial output, capped: the newer part and the older one
//!       log                        messages of the VM's process
//!       outcome.json               how it ended
//! ```
//!
//! A directory stays after its VM's end, until it is removed.

pub(crate) mod arrivals;
pub(crate) mod claim;
pub(crate) mod data_dir;
pub(crate) mod forward;
pub(crate) mod listing;
mod lock;
pub(crate) mod name;
pub(crate) mod outcome;
pub(crate) mod record;
pub(crate) mod root;
pub(crate) mod sudden_end;
pub(crate) mod vm_dir;

/// Names of the files of a VM's directory.
pub(crate) mod files {
    pub(crate) const LOCK: &str = "lock";
    pub(crate) const RECORD: &str = "vm.json";
    pub(crate) const CONFIG: &str = "config.json";
    pub(crate) const API: &str = "api.sock";
    pub(crate) const SERIAL: &str = "serial.sock";
    pub(crate) const VSOCK: &str = "vsock";
    pub(crate) const CONSOLE: &str = "console.sock";
    pub(crate) const SERIAL_LOGS: [&str; 2] = ["serial-0.log", "serial-1.log"];
    /// Output of the main process, in VMs of images, and the socket of its readers.
    pub(crate) const MAIN_LOGS: [&str; 2] = ["main-0.log", "main-1.log"];
    pub(crate) const MAIN: &str = "main.sock";
    pub(crate) const LOG: &str = "log";
    pub(crate) const OUTCOME: &str = "outcome.json";
    /// A new record, before it takes the place of the old one.
    pub(super) const NEW_RECORD: &str = ".vm.json";

    /// Whether a VM's directory may have an entry of this name. A process of the host listens at `vsock_PORT`
    /// for connections of the guest.
    pub(super) fn is_known(name: &str) -> bool {
        let single = [LOCK, RECORD, NEW_RECORD, CONFIG, API, SERIAL, VSOCK, CONSOLE, MAIN, LOG, OUTCOME];
        let port = name.strip_prefix(VSOCK).and_then(|rest| rest.strip_prefix('_'));
        let is_port = port.is_some_and(|port| port.parse::<u32>().is_ok());
        single.contains(&name) || SERIAL_LOGS.contains(&name) || MAIN_LOGS.contains(&name) || is_port
    }
}
