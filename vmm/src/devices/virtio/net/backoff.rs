//! When to try again after errors of the host that may pass.

use std::time::{Duration, Instant};

/// So many errors in a row are retried at once: each may be about one frame.
const AT_ONCE: u32 = 8;
/// The first pause after these; each further error doubles it.
const FIRST: Duration = Duration::from_millis(1);
/// The doublings end here, at one second.
const DOUBLINGS: u32 = 10;

/// Counts errors in a row.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    errors: u32,
}

impl Backoff {
    /// Takes note of an error. Returns when to try again, or None for at once.
    pub fn failed(&mut self, now: Instant) -> Option<Instant> {
        self.errors = self.errors.saturating_add(1);
        let doublings = self.errors.checked_sub(AT_ONCE + 1)?.min(DOUBLINGS);
        Some(now + FIRST * (1 << doublings))
    }

    /// Takes note that the host answers again.
    pub fn succeeded(&mut self) {
        self.errors = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_second_and_end_with_a_success() {
        let (mut backoff, now) = (Backoff::default(), Instant::now());
        let pauses = |backoff: &mut Backoff| {
            (0..30).map(|_| backoff.failed(now).map_or(0, |at| (at - now).as_millis())).collect::<Vec<_>>()
        };
        let first = pauses(&mut backoff);
        assert_eq!(first[..12], [0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 4, 8]);
        assert_eq!(first[29], 1024);
        backoff.succeeded();
        assert_eq!(pauses(&mut backoff), first);
    }
}
