//! The REST API: HTTP/1.1 over a unix socket, Firecracker's paths beside volt-vmm's own under `/v1`.
//!
//! A handler makes one call of the synchronous library, through [`Api::call`]. Every refusal, axum's own
//! included, is a [`Fault`].

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::http::{Method, Uri};

use crate::process::vm_slot::Slot;

mod body;
mod calls;
mod error;
mod firecracker;
mod server;
mod socket;
#[cfg(test)]
pub(crate) mod testing;
mod v1;

pub(crate) use crate::rest::v1::fork::{ChildOfFork, ForkRequest, Forks};
use calls::Calls;
use error::Fault;
pub(crate) use error::FaultMessage;
pub(crate) use firecracker::API_VERSION;
pub(crate) use firecracker::machine::Draft;
pub(crate) use firecracker::names::FIELDS as FIRECRACKER_FIELDS;
pub(crate) use firecracker::names::config_file::ConfigFile;
pub(crate) use firecracker::names::logger::{LogLevel, Logger};
pub(crate) use firecracker::names::snapshot::{CreateSnapshot, SnapshotType};
pub(crate) use server::Server;
pub(crate) use socket::{Socket, SocketFile};

/// State that all handlers share.
#[derive(Clone, Debug)]
struct Api {
    slot: Arc<Slot>,
    /// Configuration collected by Firecracker's paths for `InstanceStart`.
    draft: Arc<Mutex<Draft>>,
    /// Bytes of the longest body.
    longest_body: usize,
    calls: Calls,
}

/// Options of the command line for the API.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ApiOptions {
    /// The configuration that the VM was started from, in Firecracker's names.
    pub(crate) draft: Draft,
    /// Bytes of the longest body of a request.
    pub(crate) longest_body: usize,
}

impl Default for ApiOptions {
    fn default() -> Self {
        Self { draft: Draft::default(), longest_body: 1 << 20 }
    }
}

impl Api {
    fn new(slot: Arc<Slot>, options: ApiOptions) -> Self {
        let ApiOptions { draft, longest_body } = options;
        Self { slot, draft: Arc::new(Mutex::new(draft)), longest_body, calls: Calls::new() }
    }

    /// Runs one call of the library on a thread that may block. It continues to its end even if the client
    /// disconnects.
    async fn call<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Slot) -> volt_vmm::Result<T> + Send + 'static,
    ) -> Result<T, Fault> {
        self.calls.run(Arc::clone(&self.slot), act).await
    }
}

fn router(api: Api) -> Router {
    firecracker::routes()
        .merge(v1::routes())
        .method_not_allowed_fallback(async |method: Method, uri: Uri| Fault::method(&method, uri.path()))
        .fallback(async |method: Method, uri: Uri| Fault::path(&method, uri.path()))
        .with_state(api)
}
