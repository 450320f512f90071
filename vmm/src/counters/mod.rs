//! Numbers that the threads of a VM count while they work: relaxed atomics, without a lock or a system call.
//!
//! ```text
//!   vCPU thread ──> ExitCounters ──┐
//!   device ──────> DeviceCounters ─┼── read() ──> the pictures of crate::Metrics
//!   page faults ──> FaultCounters ─┘
//! ```
//!
//! A picture is not one instant: each number is right for itself, and none ever falls.

pub mod device;
pub mod exits;
pub mod faults;
pub mod histogram;
pub mod metadata;
pub mod policy;
pub mod snapshots;
pub mod time_spread;

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `count`, on the one thread that writes at a time. Two such calls at once may lose one.
    pub fn add(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    /// Adds `count`, on any thread.
    pub fn add_shared(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// The number now.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_additions_of_many_threads_all_count() {
        let counter = Counter::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| counter.add_shared(3)));
            }
        });
        assert_eq!(counter.get(), 120_000);
        counter.add(1);
        assert_eq!(counter.get(), 120_001);
    }
}
