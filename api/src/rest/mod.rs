//! The REST API: HTTP/1.1 over a unix socket, Firecracker's paths beside volt-vmm's own under `/v1`.
//!
//! A handler makes one call of the synchronous library, through [`Api::call`]. Every refusal, axum's own
//! included, is a [`Fault`].

use std::sync::{Arc, Mutex};
use std::time::Instant;

use volt_vmm::{MetadataStore, Progress, Vm};

use crate::process::vm_slot::Slot;

mod body;
mod calls;
mod counts;
mod error;
mod events;
mod exposition;
mod faces;
mod firecracker;
mod objects;
mod operations;
mod server;
mod snapshots;
mod socket;
#[cfg(test)]
pub(crate) mod testing;
mod v1;

pub(crate) use crate::rest::v1::fork::{ChildOfFork, ForkRequest, Forks};
pub(crate) use crate::rest::v1::operations::OperationList;
pub(crate) use crate::rest::v1::snapshots::{Kind, NewSnapshot, Taken};
use calls::{Calls, Queue};
use counts::{ApiCounts, TimedAct};
use error::Fault;
pub(crate) use error::FaultMessage;
use events::Hub;
pub(crate) use events::{EndCause, Event, VmState as EventState};
pub(crate) use firecracker::API_VERSION;
pub(crate) use firecracker::machine::Draft;
pub(crate) use firecracker::metric_names::Startup;
pub(crate) use firecracker::metrics::FlushedMetrics;
use firecracker::metrics::open_file;
pub(crate) use firecracker::names::FIELDS as FIRECRACKER_FIELDS;
pub(crate) use firecracker::names::config_file::ConfigFile;
pub(crate) use firecracker::names::cpu::CpuConfig;
pub(crate) use firecracker::names::logger::{LogLevel, Logger};
pub(crate) use firecracker::names::metrics::MetricsFile;
use operations::{Operation, OperationOf, Operations};
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
    counts: Arc<ApiCounts>,
    metrics: Arc<FlushedMetrics>,
    /// The metadata of a VM that this API starts.
    metadata: MetadataStore,
    calls: Calls,
    /// The clients that follow the VM.
    events: Hub,
    /// Snapshots, forks and loads that are under way or wait.
    operations: Operations,
}

/// Options of the command line for the API.
#[derive(Clone, Debug)]
pub(crate) struct ApiOptions {
    /// The configuration that the VM was started from, in Firecracker's names.
    pub(crate) draft: Draft,
    /// Bytes of the longest body of a request.
    pub(crate) longest_body: usize,
    /// The file of metrics, if there is one by now.
    pub(crate) metrics: Option<Arc<FlushedMetrics>>,
    /// The metadata of a VM that the API starts.
    pub(crate) metadata: MetadataStore,
}

impl Default for ApiOptions {
    fn default() -> Self {
        Self {
            draft: Draft::default(),
            longest_body: 1 << 20,
            metadata: MetadataStore::default(),
            metrics: None,
        }
    }
}

impl ApiOptions {
    /// Opens the file of metrics that the draft names, before the process is confined.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(crate) fn open_metrics(&mut self) -> volt_vmm::Result<()> {
        if let Some(MetricsFile { metrics_path }) = &self.draft.metrics {
            let file = open_file(metrics_path)?;
            self.metrics.get_or_insert_default().set(file);
        }
        Ok(())
    }
}

impl Api {
    fn new(slot: Arc<Slot>, options: ApiOptions) -> Self {
        let ApiOptions { draft, longest_body, metrics, metadata } = options;
        let (draft, events) = (Arc::new(Mutex::new(draft)), Hub::new());
        if let Some(vm) = slot.peek() {
            events.started(&vm);
        }
        let (metrics, calls) = (metrics.unwrap_or_default(), Calls::new());
        let (counts, operations) = (Arc::clone(metrics.counts()), Operations::default());
        Self { slot, draft, longest_body, counts, metrics, metadata, calls, events, operations }
    }

    /// Starts the VM with the result of `prepare`, and tells the clients that follow it.
    async fn start<P: 'static, V: Into<Arc<Vm>>>(
        &self,
        act: &'static str,
        prepare: impl FnOnce() -> volt_vmm::Result<P> + Send + 'static,
        make: impl FnOnce(P, &Slot) -> volt_vmm::Result<V> + Send + 'static,
    ) -> Result<(), Fault> {
        let events = self.events.clone();
        self.call(move |slot| {
            let vm = slot.start(act, || make(prepare()?, slot))?;
            events.started(&vm);
            Ok(())
        })
        .await
    }

    /// Adds an operation, whose progress clients may follow.
    ///
    /// # Errors
    /// As [`Operations::begin`].
    fn begin(&self, kind: OperationOf, id: Option<String>, progress: &Progress) -> Result<Operation, Fault> {
        let operation = self.operations.begin(kind, id, progress)?;
        self.events.tell_progress(&self.operations);
        Ok(operation)
    }

    /// Cancels the start of the VM that is under way, if there is one. The process ends after it.
    fn cancel_start(&self) -> bool {
        let is_starting = self.slot.cancel_start();
        if is_starting && let Some(load) = self.operations.current_of_kind(OperationOf::Load) {
            load.cancel();
        }
        is_starting
    }

    /// Runs one call of the library on a thread that may block. It continues to its end even if the client
    /// disconnects.
    async fn call<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Slot) -> volt_vmm::Result<T> + Send + 'static,
    ) -> Result<T, Fault> {
        self.call_in(Queue::Usual, act).await
    }

    /// As [`Api::call`], in a queue of its kind.
    async fn call_in<T: Send + 'static>(
        &self,
        queue: Queue,
        act: impl FnOnce(&Slot) -> volt_vmm::Result<T> + Send + 'static,
    ) -> Result<T, Fault> {
        self.calls.run(Arc::clone(&self.slot), queue, act).await
    }

    /// Runs a snapshot or a fork on a thread that may block. `progress` can cancel it.
    async fn capture<T: Send + 'static>(
        &self,
        progress: &Progress,
        act: impl FnOnce(&Slot) -> volt_vmm::Result<T> + Send + 'static,
    ) -> Result<T, Fault> {
        self.calls.capture(Arc::clone(&self.slot), progress, act).await
    }

    /// As [`Api::capture`], or as [`Api::call`] without progress. Keeps the durations of the act if it
    /// succeeds.
    async fn timed<T: Send + 'static>(
        &self,
        kind: TimedAct,
        progress: Option<&Progress>,
        act: impl FnOnce(&Slot) -> volt_vmm::Result<T> + Send + 'static,
    ) -> Result<T, Fault> {
        let began = Instant::now();
        let timed = move |slot: &Slot| {
            let began = Instant::now();
            act(slot).map(|done| (done, began.elapsed()))
        };
        let (done, call) = match progress {
            Some(progress) => self.capture(progress, timed).await?,
            None => self.call(timed).await?,
        };
        self.counts.called(kind, call);
        self.counts.requested(kind, began.elapsed());
        Ok(done)
    }
}
