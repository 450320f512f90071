//! Durations: their sum, the shortest and the longest.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Counter;

/// Durations so far, in nanoseconds.
#[derive(Debug, Default)]
pub struct TimeSpread {
    sum: Counter,
    /// The shortest, plus one; 0 before the first.
    shortest: AtomicU64,
    longest: AtomicU64,
}

impl TimeSpread {
    /// Adds a duration. `add` is the addition of [`Counter`] that suits the thread. The extremes may miss one
    /// of two durations that come at once.
    pub fn add(&self, duration: Duration, add: fn(&Counter, u64)) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX - 1);
        add(&self.sum, nanos);
        let shortest = self.shortest.load(Ordering::Relaxed);
        if shortest == 0 || nanos + 1 < shortest {
            self.shortest.store(nanos + 1, Ordering::Relaxed);
        }
        if nanos > self.longest.load(Ordering::Relaxed) {
            self.longest.store(nanos, Ordering::Relaxed);
        }
    }

    /// Sum of all durations.
    #[must_use]
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum.get())
    }

    /// The shortest duration; zero before the first.
    #[must_use]
    pub fn shortest(&self) -> Duration {
        Duration::from_nanos(self.shortest.load(Ordering::Relaxed).saturating_sub(1))
    }

    /// The longest duration.
    #[must_use]
    pub fn longest(&self) -> Duration {
        Duration::from_nanos(self.longest.load(Ordering::Relaxed))
    }
}
