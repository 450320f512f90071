//! Delays before new attempts after temporary errors of the host.

use std::time::{Duration, Instant};

/// Consecutive errors that are retried at once: each may be about one frame.
const RETRIED_AT_ONCE: u32 = 8;
/// The first delay after these; each further error doubles it.
const FIRST_DELAY: Duration = Duration::from_millis(1);
/// Largest number of doublings, which gives one second.
const MAX_DOUBLINGS: u32 = 10;

/// Counts consecutive errors.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    errors: u32,
}

impl Backoff {
    /// Counts an error. Returns the time of the next attempt, or `None` for at once.
    pub fn failed(&mut self, now: Instant) -> Option<Instant> {
        self.errors = self.errors.saturating_add(1);
        let doublings = self.errors.checked_sub(RETRIED_AT_ONCE + 1)?.min(MAX_DOUBLINGS);
        Some(now + FIRST_DELAY * (1 << doublings))
    }

    /// Resets the count after a success.
    pub fn succeeded(&mut self) {
        self.errors = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_a_second_and_end_with_a_success() {
        let (mut backoff, now) = (Backoff::default(), Instant::now());
        let delays = |backoff: &mut Backoff| {
            (0..30).map(|_| backoff.failed(now).map_or(0, |at| (at - now).as_millis())).collect::<Vec<_>>()
        };
        let first = delays(&mut backoff);
        assert_eq!(first[..12], [0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 4, 8]);
        assert_eq!(first[29], 1024);
        backoff.succeeded();
        assert_eq!(delays(&mut backoff), first);
    }
}
