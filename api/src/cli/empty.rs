//! `volt-vmm --api-socket SOCKET` alone: a process that waits for a load or a boot through its API.

use std::path::PathBuf;

use volt_vmm::{Pool, VmShape, prepare_io_urings};

use super::Outcome;
use super::confine::ConfineArgs;
use crate::process::vm_slot::{DEFAULT_ID, Slot};
use crate::process::{bounds, confinement};
use crate::rest::ApiOptions;
use crate::session::Session;

/// Disks with engine=io_uring of a VM that is made through the API. Each io_uring takes 40 KiB.
const MOST_IO_URINGS: usize = 8;

/// A process without a VM.
#[derive(Debug)]
pub(crate) struct Empty {
    /// The socket of the API.
    pub(super) api_socket: PathBuf,
    /// The name of the VM.
    pub(super) id: Option<String>,
    /// The shape of the VM to create ahead of a load.
    pub(super) prewarm: Option<VmShape>,
    /// Directories in which the process may open files.
    pub(super) allowed: Vec<PathBuf>,
    /// The confinement of the process.
    pub(super) confine: ConfineArgs,
    /// How the API is served.
    pub(super) options: ApiOptions,
}

impl Empty {
    pub(crate) fn execute(self) -> Outcome {
        let mut choice = self.confine.choice(|| bounds::of(&self.allowed, None, None));
        choice.add_socket(&self.api_socket);
        confinement::apply(choice, self.prewarm)?;
        prepare_io_urings(MOST_IO_URINGS);
        let id = self.id.unwrap_or_else(|| DEFAULT_ID.to_owned());
        // One VM, because this process never runs a second one. It is ready before a client can connect.
        let slot = match self.prewarm {
            Some(shape) => Slot::with_prewarmed(id, Pool::filled(shape, 1)?),
            None => Slot::with_id(id),
        };
        Session::with_slot(slot, Some(&self.api_socket))?.serving(self.options).wait_for_vm()
    }
}
