//! The progress of a long act, and a way to cancel it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::{Error, Result};

/// Follows one long act from any thread, and cancels it. Clones share the act.
///
/// An act counts the bytes that it has worked through. A cancelled act fails with [`Error::Cancelled`] within
/// some MiB of work, and leaves nothing of what it made.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    done: AtomicU64,
    total: AtomicU64,
    is_cancelled: AtomicBool,
}

impl Progress {
    /// Returns the bytes worked through so far.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.0.done.load(Ordering::Relaxed)
    }

    /// Returns the bytes in all; 0 before the act began. An act skips holes, so it may end below this number.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.total.load(Ordering::Relaxed)
    }

    /// Cancels the act, now or when it begins.
    pub fn cancel(&self) {
        self.0.is_cancelled.store(true, Ordering::Relaxed);
    }

    /// Begins an act that works through `total` bytes.
    pub(crate) fn begin(&self, total: u64) {
        self.0.done.store(0, Ordering::Relaxed);
        self.0.total.store(total, Ordering::Relaxed);
    }

    /// Counts `bytes` more.
    ///
    /// # Errors
    /// [`Error::Cancelled`] if the act was cancelled.
    pub(crate) fn add(&self, bytes: u64) -> Result<()> {
        self.0.done.fetch_add(bytes, Ordering::Relaxed);
        self.check()
    }

    /// Counts a phase as done: at least `done` bytes in all.
    ///
    /// # Errors
    /// As [`Progress::add`].
    pub(crate) fn reach(&self, done: u64) -> Result<()> {
        self.0.done.fetch_max(done, Ordering::Relaxed);
        self.check()
    }

    /// Checks whether the act was cancelled.
    ///
    /// # Errors
    /// As [`Progress::add`].
    pub(crate) fn check(&self) -> Result<()> {
        if self.0.is_cancelled.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
    }
}
