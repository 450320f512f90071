//! Exits of a vCPU from the guest, by their reason.

use std::time::Duration;

use super::Counter;
use super::time_spread::TimeSpread;

/// Reason for which a vCPU left the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitReason {
    /// A read from an I/O port.
    PioRead,
    /// A write to an I/O port.
    PioWrite,
    /// A read outside guest memory.
    MmioRead,
    /// A write outside guest memory.
    MmioWrite,
    /// The end of an interrupt, for an IOAPIC outside the kernel.
    EndOfInterrupt,
    /// A pause, or another interruption by the host.
    Interrupted,
    /// The guest ended: a triple fault, a reset or a poweroff.
    Ended,
    /// Guest memory was unavailable, or KVM cannot go on.
    Failed,
}

impl ExitReason {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::PioRead,
        Self::PioWrite,
        Self::MmioRead,
        Self::MmioWrite,
        Self::EndOfInterrupt,
        Self::Interrupted,
        Self::Ended,
        Self::Failed,
    ];
}

/// Exits of one vCPU, whose thread alone counts. A cache line of its own, so that vCPUs do not disturb each
/// other.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct ExitCounters([OneReason; ExitReason::ALL.len()]);

#[derive(Debug, Default)]
struct OneReason {
    exits: Counter,
    times: TimeSpread,
}

/// Exits of a vCPU for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exits {
    /// The reason.
    pub reason: ExitReason,
    /// Their number.
    pub count: u64,
    /// Time in which this process handled them.
    pub sum: Duration,
    /// The shortest such time; zero before the first exit.
    pub shortest: Duration,
    /// The longest such time.
    pub longest: Duration,
}

impl ExitCounters {
    /// Counts an exit that took `took` to handle.
    pub(crate) fn add(&self, reason: ExitReason, took: Duration) {
        let OneReason { exits, times } = &self.0[reason as usize];
        exits.add(1);
        times.add(took, Counter::add);
    }

    /// The exits so far, by reason.
    pub(crate) fn read(&self) -> [Exits; ExitReason::ALL.len()] {
        ExitReason::ALL.map(|reason| {
            let OneReason { exits, times } = &self.0[reason as usize];
            Exits {
                reason,
                count: exits.get(),
                sum: times.sum(),
                shortest: times.shortest(),
                longest: times.longest(),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exits_count_for_their_reason_alone() {
        let counters = ExitCounters::default();
        for micros in [3, 1, 2] {
            counters.add(ExitReason::MmioWrite, Duration::from_micros(micros));
        }
        for (exits, reason) in counters.read().into_iter().zip(ExitReason::ALL) {
            assert_eq!(exits.reason, reason);
            let is_counted = reason == ExitReason::MmioWrite;
            assert_eq!(exits.count, if is_counted { 3 } else { 0 }, "{reason:?}");
            let [sum, shortest, longest] =
                [6, 1, 3].map(|us| Duration::from_micros(us * u64::from(is_counted)));
            assert_eq!((exits.sum, exits.shortest, exits.longest), (sum, shortest, longest));
        }
    }
}
