//! Snapshots, forks and rewinds of one VM.

use std::time::Duration;

use super::Counter;
use super::histogram::{Durations, Histogram};

/// Kind of an act that captures or resets a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotAct {
    /// A full snapshot on disk.
    Full,
    /// A diff on disk.
    Diff,
    /// A snapshot in memory, for a fork.
    InMemory,
    /// A rewind.
    Rewind,
}

impl SnapshotAct {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Full, Self::Diff, Self::InMemory, Self::Rewind];
}

/// Counters of one VM. Acts run one at a time, but failures may come from any thread.
#[derive(Debug, Default)]
pub struct SnapshotCounters([OneAct; SnapshotAct::ALL.len()]);

#[derive(Debug, Default)]
struct OneAct {
    duration: Histogram,
    paused: Histogram,
    disks_stopped: Histogram,
    failed: Counter,
}

/// Pauses that an act took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActPauses {
    /// The vCPUs were halted.
    pub paused: Duration,
    /// The disks took no requests while the vCPUs still ran.
    pub disks_stopped: Duration,
}

/// Acts of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotMetrics {
    /// The kind.
    pub act: SnapshotAct,
    /// Duration of each act that succeeded, from its call to its end.
    pub duration: Durations,
    /// Pause of the vCPUs in each.
    pub paused: Durations,
    /// Time before each pause in which the disks took no requests.
    pub disks_stopped: Durations,
    /// Acts that failed.
    pub failed: u64,
}

impl SnapshotCounters {
    /// Counts an act that took `took`, if it succeeded.
    pub(crate) fn add(&self, act: SnapshotAct, took: Duration, pauses: Option<ActPauses>) {
        let OneAct { duration, paused, disks_stopped, failed } = &self.0[act as usize];
        match pauses {
            Some(pauses) => {
                duration.add_shared(took);
                paused.add_shared(pauses.paused);
                disks_stopped.add_shared(pauses.disks_stopped);
            }
            None => failed.add_shared(1),
        }
    }

    /// The acts so far.
    pub(crate) fn read(&self) -> [SnapshotMetrics; SnapshotAct::ALL.len()] {
        SnapshotAct::ALL.map(|act| {
            let OneAct { duration, paused, disks_stopped, failed } = &self.0[act as usize];
            SnapshotMetrics {
                act,
                duration: duration.read(),
                paused: paused.read(),
                disks_stopped: disks_stopped.read(),
                failed: failed.get(),
            }
        })
    }
}
