//! Times and what is said of them.

use std::time::Duration;

/// Times of the same thing, run after run.
#[derive(Clone, Debug, Default)]
pub struct Times(Vec<Duration>);

impl Times {
    /// One more.
    pub fn add(&mut self, time: Duration) {
        let at = self.0.partition_point(|&other| other <= time);
        self.0.insert(at, time);
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All, the shortest first.
    pub fn each(&self) -> impl Iterator<Item = Duration> + '_ {
        self.0.iter().copied()
    }

    /// The shortest.
    #[must_use]
    pub fn min(&self) -> Duration {
        self.percentile(0)
    }

    /// What `percent` of the times do not exceed (nearest rank); zero if there are no times.
    #[must_use]
    pub fn percentile(&self, percent: usize) -> Duration {
        let rank = (self.len() * percent).div_ceil(100);
        self.0.get(rank.saturating_sub(1)).copied().unwrap_or_default()
    }

    /// Minimum, p50, p90 and p99 in milliseconds, as cells of a table.
    #[must_use]
    pub fn cells(&self) -> [String; 4] {
        [0, 50, 90, 99].map(|percent| milliseconds(self.percentile(percent)))
    }
}

/// With the digits that mean something.
#[must_use]
pub fn milliseconds(time: Duration) -> String {
    let milliseconds = time.as_secs_f64() * 1e3;
    match milliseconds {
        100.0.. => format!("{milliseconds:.0}"),
        10.0.. => format!("{milliseconds:.1}"),
        _ => format!("{milliseconds:.3}"),
    }
}

/// `a / b`, as a cell of a table.
#[must_use]
pub fn ratio(a: Duration, b: Duration) -> f64 {
    a.as_secs_f64() / b.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let mut times = Times::default();
        (1..=100).rev().for_each(|ms| times.add(Duration::from_millis(ms)));
        let percentiles = [0, 50, 90, 99, 100].map(|percent| times.percentile(percent).as_millis());
        assert_eq!(percentiles, [1, 50, 90, 99, 100]);
        assert_eq!(times.min().as_millis(), 1);
        assert_eq!(Times::default().percentile(50), Duration::ZERO);
    }

    #[test]
    fn milliseconds_keep_the_digits_that_mean_something() {
        let texts = [1_234, 12_345, 123_456].map(|us| milliseconds(Duration::from_micros(us)));
        assert_eq!(texts, ["1.234", "12.3", "123"]);
    }
}
