//! Waits while the host briefly lacks memory, because reclaim may free some. Without it the VM would end.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;

/// The first wait and the last. Each is twice as long as the one before: 2 s in all.
const FIRST_WAIT: Duration = Duration::from_millis(1);
const LAST_WAIT: Duration = Duration::from_millis(1024);
/// Milliseconds for which a host that lacked memory counts as still lacking it.
const STARVED: u64 = 2000;

/// Repeats calls that fail for lack of memory. After a wait fails, new calls fail at once until one succeeds
/// or [`STARVED`] has passed.
#[derive(Debug, Default)]
pub struct Patience {
    /// Time of the last wait that failed, in milliseconds of [`now`]; 0 for never.
    starved_at: AtomicU64,
}

impl Patience {
    /// Calls `act` until it succeeds, fails with another error than `ENOMEM` or `EAGAIN`, or the waits end.
    ///
    /// # Errors
    /// The last error of `act`.
    pub fn retry(&self, mut act: impl FnMut() -> rustix::io::Result<()>) -> rustix::io::Result<()> {
        let mut wait = FIRST_WAIT;
        // Asked once: a call that already waits goes on after the wait of another call fails.
        let mut waits = None;
        loop {
            match act() {
                Err(lack @ (Errno::NOMEM | Errno::AGAIN))
                    if *waits.get_or_insert_with(|| !self.is_starved()) =>
                {
                    if wait > LAST_WAIT {
                        self.starved_at.store(now(), Ordering::Relaxed);
                        return Err(lack);
                    }
                    thread::sleep(wait);
                    wait *= 2;
                }
                Ok(()) => {
                    self.succeeded();
                    return Ok(());
                }
                other => return other,
            }
        }
    }

    /// Records that the host had memory.
    pub fn succeeded(&self) {
        // Reads first: a write would invalidate other CPUs' caches.
        if self.starved_at.load(Ordering::Relaxed) != 0 {
            self.starved_at.store(0, Ordering::Relaxed);
        }
    }

    fn is_starved(&self) -> bool {
        match self.starved_at.load(Ordering::Relaxed) {
            0 => false,
            at => now().saturating_sub(at) < STARVED,
        }
    }
}

/// Milliseconds since the first call in the process, plus one.
fn now() -> u64 {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    FIRST.get_or_init(Instant::now).elapsed().as_millis() as u64 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_that_waits_goes_on_after_another_waited_in_vain() {
        let patience = Patience::default();
        let mut calls = 0;
        let done = patience.retry(|| {
            calls += 1;
            if calls == 2 {
                patience.starved_at.store(now(), Ordering::Relaxed);
            }
            if calls < 4 { Err(Errno::NOMEM) } else { Ok(()) }
        });
        assert_eq!((done, calls), (Ok(()), 4));
    }

    #[test]
    fn call_that_begins_after_a_wait_in_vain_does_not_wait() {
        let patience = Patience::default();
        patience.starved_at.store(now(), Ordering::Relaxed);
        let mut calls = 0;
        let done = patience.retry(|| {
            calls += 1;
            Err(Errno::NOMEM)
        });
        assert_eq!((done, calls), (Err(Errno::NOMEM), 1));
    }
}
