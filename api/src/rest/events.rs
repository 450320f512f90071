//! Events of the VM for the clients that follow it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;
use utoipa::ToSchema;
use volt_vmm::{Ending, Progress, RunState, Vm, VmEvent};

use super::error::Fault;
use super::operations::{OperationOf, Operations};

/// Most events that wait for a slow client, which misses older ones.
const MOST: usize = 256;
/// Time between two events of progress.
const TICK: Duration = Duration::from_millis(200);

/// State of the VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum VmState {
    #[serde(rename = "not started")]
    NotStarted,
    Running,
    Paused,
    Ended,
}

impl From<Option<RunState>> for VmState {
    fn from(state: Option<RunState>) -> Self {
        match state {
            None => Self::NotStarted,
            Some(RunState::Running) => Self::Running,
            Some(RunState::Paused) => Self::Paused,
            Some(RunState::Ended) => Self::Ended,
        }
    }
}

/// How a guest ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum EndCause {
    Poweroff,
    Reboot,
    Panicked,
    TripleFault,
    /// A signal or a request ended the VM.
    Stopped,
    /// The VM could not go on.
    Crashed,
}

/// An event of the VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// The VM's state: the present one first, then each new one.
    State { state: VmState },
    /// Progress of the snapshot that is being taken.
    SnapshotProgress { done_bytes: u64, total_bytes: u64 },
    /// Progress of the fork that is being made.
    ForkProgress { done_bytes: u64, total_bytes: u64 },
    /// Progress of the restore of a snapshot, if it has work to do before the guest runs.
    LoadProgress { done_bytes: u64, total_bytes: u64 },
    /// A device stopped, and works again once its driver resets it.
    DeviceFailed { device: String, problem: String },
    /// The policy of a network device denied something. Most of a flood are left out.
    Denied { device: String, what: String },
    /// The guest has ended. No event follows.
    Ended {
        cause: EndCause,
        #[serde(skip_serializing_if = "Option::is_none")]
        problem: Option<String>,
    },
}

impl Event {
    /// Describes an event of the library; nothing for one that this program does not know.
    fn of(event: &VmEvent) -> Option<Self> {
        Some(match event {
            VmEvent::State(state) => Event::State { state: Some(*state).into() },
            VmEvent::DeviceFailed { device, problem } => {
                Event::DeviceFailed { device: device.clone(), problem: problem.clone() }
            }
            VmEvent::Denied { device, what } => Event::Denied { device: device.clone(), what: what.clone() },
            VmEvent::Ended(Ok(ending)) => {
                let cause = match ending {
                    Ending::Poweroff => EndCause::Poweroff,
                    Ending::Reboot => EndCause::Reboot,
                    Ending::Panicked => EndCause::Panicked,
                    Ending::TripleFault => EndCause::TripleFault,
                    Ending::Stopped => EndCause::Stopped,
                };
                Event::Ended { cause, problem: None }
            }
            VmEvent::Ended(Err(problem)) => {
                Event::Ended { cause: EndCause::Crashed, problem: Some(problem.clone()) }
            }
            _ => return None,
        })
    }

    /// The name of the event, as its field `event` has it.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::State { .. } => "state",
            Self::SnapshotProgress { .. } => "snapshot_progress",
            Self::ForkProgress { .. } => "fork_progress",
            Self::LoadProgress { .. } => "load_progress",
            Self::DeviceFailed { .. } => "device_failed",
            Self::Denied { .. } => "denied",
            Self::Ended { .. } => "ended",
        }
    }
}

/// Most clients at once. Each keeps a connection.
const MOST_CLIENTS: usize = 64;

/// The clients that follow the VM. Cloning shares them.
#[derive(Clone, Debug)]
pub(super) struct Hub {
    clients: broadcast::Sender<Event>,
    /// Whether a task tells the progress of operations.
    is_telling: Arc<AtomicBool>,
}

impl Hub {
    pub(super) fn new() -> Self {
        Self { clients: broadcast::channel(MOST).0, is_telling: Arc::default() }
    }

    /// Tells the clients of a VM that has started, and of its events from now on.
    pub(super) fn started(&self, vm: &Vm) {
        let clients = self.clients.clone();
        vm.follow(move |event| {
            if let Some(event) = Event::of(event) {
                // Without a client, it is dropped.
                let _ = clients.send(event);
            }
        });
        let _ = self.clients.send(Event::State { state: Some(vm.state()).into() });
    }

    /// Adds a client.
    ///
    /// # Errors
    /// There are enough: other requests need connections too.
    pub(super) fn subscribe(&self) -> Result<broadcast::Receiver<Event>, Fault> {
        if self.clients.receiver_count() >= MOST_CLIENTS {
            let problem = format!("cannot follow the VM: {MOST_CLIENTS} clients do so already");
            return Err(Fault::refused(problem));
        }
        Ok(self.clients.subscribe())
    }

    /// Tells the clients of the progress of operations until the last has ended, or the last client has left.
    /// To be called when an operation begins and when a client comes. Runs on the server's runtime.
    pub(super) fn tell_progress(&self, operations: &Operations) {
        if self.due(operations).is_none() || self.is_telling.swap(true, Ordering::SeqCst) {
            return;
        }
        let (hub, operations) = (self.clone(), operations.clone());
        tokio::spawn(async move {
            while let Some((kind, progress)) = hub.due(&operations) {
                let (done_bytes, total_bytes) = (progress.done(), progress.total());
                let event = match kind {
                    OperationOf::Snapshot => Some(Event::SnapshotProgress { done_bytes, total_bytes }),
                    // Most loads have nothing to do before the guest runs, and most forks end at once.
                    OperationOf::Load | OperationOf::Fork if total_bytes == 0 => None,
                    OperationOf::Fork => Some(Event::ForkProgress { done_bytes, total_bytes }),
                    OperationOf::Load => Some(Event::LoadProgress { done_bytes, total_bytes }),
                };
                event.into_iter().for_each(|event| drop(hub.clients.send(event)));
                tokio::time::sleep(TICK).await;
            }
            hub.is_telling.store(false, Ordering::SeqCst);
            // An operation or a client may have come before that.
            hub.tell_progress(&operations);
        });
    }

    /// The operation whose progress is to be told.
    fn due(&self, operations: &Operations) -> Option<(OperationOf, Progress)> {
        operations.current().filter(|_| self.clients.receiver_count() > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_that_comes_during_a_snapshot_is_told_its_progress_once_a_tick() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let (hub, operations) = (Hub::new(), Operations::default());
            let begin = |kind, progress: &Progress| operations.begin(kind, None, progress).unwrap();
            let taken = begin(OperationOf::Snapshot, &Progress::default());
            hub.tell_progress(&operations);
            let mut client = hub.subscribe().unwrap();
            let fork = Progress::default();
            let other = begin(OperationOf::Fork, &fork);
            (0..3).for_each(|_| hub.tell_progress(&operations));
            tokio::task::yield_now().await;
            assert!(matches!(client.try_recv(), Ok(Event::SnapshotProgress { .. })));
            assert!(client.try_recv().is_err(), "one task tells it");
            fork.begin(8);
            drop((taken, client));
            while hub.is_telling.load(Ordering::SeqCst) {
                tokio::time::sleep(TICK).await;
            }
            let mut client = hub.subscribe().unwrap();
            hub.tell_progress(&operations);
            let told = client.recv().await;
            let expected = Event::ForkProgress { done_bytes: 0, total_bytes: 8 };
            assert_eq!(told, Ok(expected), "it begins again for a new client");
            let load = Progress::default();
            let _load = begin(OperationOf::Load, &load);
            load.begin(8);
            drop(other);
            let told = async {
                while client.recv().await != Ok(Event::LoadProgress { done_bytes: 0, total_bytes: 8 }) {}
            };
            told.await;
        });
    }

    #[test]
    fn events_have_their_names_in_json() {
        for event in [
            Event::State { state: VmState::NotStarted },
            Event::SnapshotProgress { done_bytes: 1, total_bytes: 2 },
            Event::ForkProgress { done_bytes: 1, total_bytes: 2 },
            Event::LoadProgress { done_bytes: 1, total_bytes: 2 },
            Event::DeviceFailed { device: "rng".to_owned(), problem: "p".to_owned() },
            Event::Denied { device: "net-eth0".to_owned(), what: "w".to_owned() },
            Event::Ended { cause: EndCause::TripleFault, problem: None },
        ] {
            assert_eq!(serde_json::to_value(&event).unwrap()["event"], event.name());
        }
        let crash = Event::of(&VmEvent::Ended(Err("no memory".to_owned()))).unwrap();
        let json = serde_json::to_string(&crash).unwrap();
        assert_eq!(json, r#"{"event":"ended","cause":"crashed","problem":"no memory"}"#);
    }
}
