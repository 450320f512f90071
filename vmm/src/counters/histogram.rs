//! Histograms of durations, in classes that suit a page fault, a disk operation and a snapshot alike.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Counter;
use super::time_spread::TimeSpread;

/// Upper bounds of the classes in microseconds; a duration equal to a bound belongs below it. One more class
/// holds the rest.
const BOUNDS_US: [u64; 14] =
    [5, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 20_000, 100_000, 500_000, 2_000_000, 10_000_000];
const CLASSES: usize = BOUNDS_US.len() + 1;

/// Durations so far.
#[derive(Debug, Default)]
pub struct Histogram {
    classes: [Counter; CLASSES],
    times: TimeSpread,
}

/// Durations of acts of one kind. The numbers grow for as long as the VM lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Durations {
    /// Acts in each class, those of shorter ones left out. The last class has no upper bound.
    pub classes: [u64; CLASSES],
    /// Sum of all durations.
    pub sum: Duration,
    /// The shortest; zero before the first act.
    pub shortest: Duration,
    /// The longest.
    pub longest: Duration,
}

impl Durations {
    /// Upper bounds of the classes but the last, which has none.
    pub fn bounds() -> impl Iterator<Item = Duration> {
        BOUNDS_US.into_iter().map(Duration::from_micros)
    }

    /// Number of acts.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.classes.iter().sum()
    }

    /// The durations of one act.
    #[must_use]
    pub fn of(duration: Duration) -> Self {
        let histogram = Histogram::default();
        histogram.add(duration);
        histogram.read()
    }

    /// The durations of both.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        let mut classes = self.classes;
        classes.iter_mut().zip(other.classes).for_each(|(class, more)| *class += more);
        let shortest = match (self.count(), other.count()) {
            (0, _) => other.shortest,
            (_, 0) => self.shortest,
            _ => self.shortest.min(other.shortest),
        };
        Self { classes, sum: self.sum + other.sum, shortest, longest: self.longest.max(other.longest) }
    }
}

impl Histogram {
    /// Adds a duration, on the one thread that writes at a time.
    pub fn add(&self, duration: Duration) {
        self.add_by(duration, Counter::add);
    }

    /// Adds a duration, on any thread. The extremes may miss one of two that come at once.
    pub fn add_shared(&self, duration: Duration) {
        self.add_by(duration, Counter::add_shared);
    }

    fn add_by(&self, duration: Duration, add: fn(&Counter, u64)) {
        let class = BOUNDS_US.iter().position(|bound| duration <= Duration::from_micros(*bound));
        add(&self.classes[class.unwrap_or(CLASSES - 1)], 1);
        self.times.add(duration, add);
    }

    /// The durations so far.
    #[must_use]
    pub fn read(&self) -> Durations {
        Durations {
            classes: std::array::from_fn(|class| self.classes[class].get()),
            sum: self.times.sum(),
            shortest: self.times.shortest(),
            longest: self.times.longest(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_is_in_the_first_class_that_holds_it() {
        let histogram = Histogram::default();
        assert_eq!(histogram.read(), Durations::default());
        for micros in [0, 5, 6, 10_000_000, 10_000_001] {
            histogram.add(Duration::from_micros(micros));
        }
        let read = histogram.read();
        let mut wanted = [0; CLASSES];
        (wanted[0], wanted[1], wanted[13], wanted[14]) = (2, 1, 1, 1);
        assert_eq!((read.classes, read.count()), (wanted, 5));
        assert_eq!(read.sum, Duration::from_micros(20_000_012));
        assert_eq!((read.shortest, read.longest), (Duration::ZERO, Duration::from_micros(10_000_001)));
        histogram.add_shared(Duration::MAX);
        assert_eq!(histogram.read().classes[14], 2);
    }

    #[test]
    fn sum_of_two_has_the_extremes_of_both() {
        let (short, long) = (Duration::from_micros(3), Duration::from_secs(3));
        let both = Durations::of(long).with(Durations::of(short));
        assert_eq!((both.count(), both.sum), (2, short + long));
        assert_eq!((both.shortest, both.longest), (short, long));
        assert_eq!(Durations::default().with(Durations::of(long)), Durations::of(long));
    }
}
