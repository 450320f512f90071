//! `volt-vmm --api-socket SOCKET` alone: a process that waits for a load or a boot through its API.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use volt_vmm::internal::host::KeptFeatures;
use volt_vmm::internal::{create_vm_ahead, keep_kvm, named_thread};
use volt_vmm::{Pool, VmShape, prepare_io_urings};

use super::Outcome;
use super::confine::ConfineArgs;
use crate::process::vm_slot::{DEFAULT_ID, Slot};
use crate::process::{bounds, confinement};
use crate::rest::ApiOptions;
use crate::session::Session;

/// Disks with engine=io_uring of a VM that is made through the API. Each io_uring takes 40 KiB.
const MOST_IO_URINGS: usize = 8;

/// Keeps KVM open, and what it offers in memory. The thread that loads a snapshot would otherwise ask another
/// process for these, one after another. Without KVM, a load or boot tells the error.
fn keep_features() {
    static FEATURES: OnceLock<Arc<KeptFeatures>> = OnceLock::new();
    if let Ok(features) = KeptFeatures::keep() {
        let _ = FEATURES.set(features);
        keep_kvm();
    }
}

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
        let is_strict = choice.strict.is_some();
        if is_strict {
            // From an empty root it could not look.
            keep_features();
        }
        confinement::apply(choice, self.prewarm)?;
        let id = self.id.unwrap_or_else(|| DEFAULT_ID.to_owned());
        // One VM, because this process never runs a second one. It is ready before a client can connect.
        let slot = match self.prewarm {
            Some(shape) => Slot::with_prewarmed(id, Pool::filled(shape, 1)?),
            None => Slot::with_id(id),
        };
        let session = Session::with_slot(slot, Some(&self.api_socket))?;
        // Signals are blocked by now, as in all threads.
        prepare_io_urings(MOST_IO_URINGS);
        let is_prewarmed = self.prewarm.is_some();
        let prepare = move || {
            if !is_strict {
                keep_features();
            }
            if !is_prewarmed {
                // Without it, a load or boot creates one, and tells the error.
                let _ = create_vm_ahead();
            }
        };
        // No request waits for it: before it is done, the thread of a load asks for itself.
        let _ = named_thread("volt-features").spawn(prepare);
        session.serving(self.options).wait_for_vm()
    }
}
