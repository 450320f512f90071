//! Waits for memory that the host lacks for a moment: reclaim may free some. The VM would end without it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;

/// The first wait and the last; each is twice as long as the one before it, 2 s in all.
const FIRST_WAIT: Duration = Duration::from_millis(1);
const LAST_WAIT: Duration = Duration::from_millis(1024);
/// Milliseconds for which a host that had no memory is taken to have none.
const STARVED: u64 = 2000;

/// Repeats calls that fail for want of memory. After one that waited in vain the next ones do not wait, until
/// one succeeds or [`STARVED`] is over.
#[derive(Debug, Default)]
pub struct Patience {
    /// When a wait ended in vain, in milliseconds of [`now`]; 0 for never.
    starved_at: AtomicU64,
}

impl Patience {
    /// Calls `act` until it succeeds, fails with another error than `ENOMEM` or `EAGAIN`, or the waits end.
    ///
    /// # Errors
    /// The last error of `act`.
    pub fn retry(&self, mut act: impl FnMut() -> rustix::io::Result<()>) -> rustix::io::Result<()> {
        let mut wait = FIRST_WAIT;
        loop {
            match act() {
                Err(lack @ (Errno::NOMEM | Errno::AGAIN)) if !self.is_starved() => {
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
        // A look first: to write would take the line from other CPUs' caches.
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

/// Milliseconds since the process first asked, and one.
fn now() -> u64 {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    FIRST.get_or_init(Instant::now).elapsed().as_millis() as u64 + 1
}
