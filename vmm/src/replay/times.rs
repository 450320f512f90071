//! Statistics of durations.

use std::time::Duration;

/// Sorted durations.
#[derive(Clone, Debug, Default)]
pub struct Times(Vec<Duration>);

impl FromIterator<Duration> for Times {
    fn from_iter<T: IntoIterator<Item = Duration>>(times: T) -> Self {
        let mut all = Self::default();
        all.extend(times);
        all
    }
}

impl Extend<Duration> for Times {
    fn extend<T: IntoIterator<Item = Duration>>(&mut self, times: T) {
        self.0.extend(times);
        self.0.sort_unstable();
    }
}

impl Times {
    /// Adds a duration.
    pub fn add(&mut self, time: Duration) {
        let at = self.0.partition_point(|&other| other <= time);
        self.0.insert(at, time);
    }

    /// Returns the number of durations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no duration was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Iterates over the durations, shortest first.
    pub fn each(&self) -> impl Iterator<Item = Duration> + '_ {
        self.0.iter().copied()
    }

    /// Returns the sum.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.each().sum()
    }

    /// Returns the average; zero without durations.
    #[must_use]
    pub fn mean(&self) -> Duration {
        Duration::from_secs_f64(self.total().as_secs_f64() / self.len().max(1) as f64)
    }

    /// Returns the shortest duration; zero without durations.
    #[must_use]
    pub fn min(&self) -> Duration {
        self.percentile(0)
    }

    /// Returns the percentile by nearest rank; zero without durations.
    #[must_use]
    pub fn percentile(&self, percent: usize) -> Duration {
        let rank = (self.len() * percent).div_ceil(100);
        self.0.get(rank.saturating_sub(1)).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let mut times = Times::default();
        (51..=100).rev().for_each(|ms| times.add(Duration::from_millis(ms)));
        times.extend((1..=50).rev().map(Duration::from_millis));
        let percentiles = [0, 50, 90, 99, 100].map(|percent| times.percentile(percent).as_millis());
        assert_eq!(percentiles, [1, 50, 90, 99, 100]);
        assert_eq!(times.min().as_millis(), 1);
        assert_eq!((times.total().as_millis(), times.mean().as_micros()), (5050, 50_500));
        assert_eq!(Times::default().percentile(50), Duration::ZERO);
        assert_eq!(Times::default().mean(), Duration::ZERO);
    }
}
