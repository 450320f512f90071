//! Page faults of one VM that this process answers from packed memory.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::histogram::{Durations, Histogram};

/// Kind of a page fault, by the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FaultKind {
    /// The chunk was read, unpacked and verified.
    Read,
    /// The chunk is all zeros.
    Zero,
    /// The chunk was there by then, for another VM or by reading ahead.
    Present,
    /// The chunk was unavailable.
    Failed,
}

impl FaultKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Read, Self::Zero, Self::Present, Self::Failed];
}

/// Counters of the faults of one VM. Many threads count at once.
#[derive(Debug, Default)]
pub struct FaultCounters([Histogram; FaultKind::ALL.len()]);

/// Page faults of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FaultsOfKind {
    /// The kind.
    pub kind: FaultKind,
    /// Time from reading a fault to its answer, with their number.
    pub latency: Durations,
}

/// The faults of one VM, by kind.
pub type FaultMetrics = [FaultsOfKind; FaultKind::ALL.len()];

impl FaultCounters {
    /// Counts a fault that took `took` to answer.
    pub(crate) fn add(&self, kind: FaultKind, took: Duration) {
        self.0[kind as usize].add_shared(took);
    }

    /// The faults so far.
    pub(crate) fn read(&self) -> FaultMetrics {
        FaultKind::ALL.map(|kind| FaultsOfKind { kind, latency: self.0[kind as usize].read() })
    }
}
