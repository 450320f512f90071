//! When a backend that has ended is connected anew: after a second, and twice as long after each one that
//! failed or ended again soon, up to about a minute.

use std::time::{Duration, Instant};

/// Time before the first start.
const RESTART: Duration = Duration::from_secs(1);
const MOST_DOUBLINGS: u32 = 6;
/// Life of a backend after which its end is a new beginning.
const LONG_LIFE: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Restarts {
    /// The time of the next one.
    pub at: Option<Instant>,
    /// Those in a row.
    count: u32,
    /// When one succeeded last.
    succeeded: Option<Instant>,
}

impl Restarts {
    /// Notes that a backend has ended. Returns false if the last restart is less than a minute ago.
    pub fn ended(&mut self, now: Instant) -> bool {
        let is_news = self.succeeded.is_none_or(|succeeded| now - succeeded > LONG_LIFE);
        if is_news {
            self.count = 0;
        }
        self.at = Some(now + self.delay());
        is_news
    }

    /// Notes a restart. One that ends again soon waits longer for its next start.
    pub fn succeeded(&mut self, now: Instant) {
        self.count = self.count.saturating_add(1);
        self.succeeded = Some(now);
    }

    /// Notes a restart that failed. Returns the time until the next one.
    pub fn failed(&mut self, now: Instant) -> Duration {
        self.count = self.count.saturating_add(1);
        self.at = Some(now + self.delay());
        self.delay()
    }

    fn delay(&self) -> Duration {
        RESTART * (1 << self.count.min(MOST_DOUBLINGS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_doubles_until_a_backend_lives_long() {
        let start = Instant::now();
        let mut restarts = Restarts::default();
        let delay = |restarts: &Restarts, now: Instant| (restarts.at.unwrap() - now).as_secs();
        assert!(restarts.ended(start));
        assert_eq!(delay(&restarts, start), 1);
        for expected in [2, 4, 8, 16, 32, 64, 64] {
            assert_eq!(restarts.failed(start).as_secs(), expected);
        }
        restarts.succeeded(start);
        assert!(!restarts.ended(start + LONG_LIFE));
        assert_eq!(delay(&restarts, start + LONG_LIFE), 64);
        let late = start + LONG_LIFE + RESTART;
        assert!(restarts.ended(late));
        assert_eq!(delay(&restarts, late), 1);
    }
}
