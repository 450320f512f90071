//! The progress of a long act, and a way to cancel it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::{Error, Result};

/// Follows one long act from any thread, and cancels it. Clones share the act.
///
/// An act counts the bytes that it has worked through. A cancelled act fails with [`Error::Cancelled`] within
/// some MiB of work, and leaves nothing of what it made. A sync under way takes its time: the host's disk
/// then has to take all that was written.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    done: AtomicU64,
    total: AtomicU64,
    is_cancelled: AtomicBool,
    /// The act is cancelled once it has counted this many bytes; never if 0.
    #[cfg(test)]
    cancels_at: AtomicU64,
}

impl Progress {
    /// Returns the bytes worked through so far.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.0.done.load(Ordering::Relaxed)
    }

    /// Returns the bytes in all; 0 before the act began. The number grows if an act finds more to do. It is
    /// never below [`Progress::done`], and the two are equal once the act has succeeded: bytes that the act
    /// could skip, such as holes, count as done.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.total.load(Ordering::Relaxed)
    }

    /// Cancels the act, now or when it begins.
    pub fn cancel(&self) {
        self.0.is_cancelled.store(true, Ordering::Relaxed);
    }

    /// Begins an act that works through `total` bytes. The library's acts do this themselves.
    pub fn begin(&self, total: u64) {
        self.0.done.store(0, Ordering::Relaxed);
        self.0.total.store(total, Ordering::Relaxed);
    }

    /// Adds `bytes` to the act, which [`Progress::begin`] did not know of.
    pub(crate) fn expect(&self, bytes: u64) {
        self.0.total.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts `bytes` more. They are part of the total.
    ///
    /// # Errors
    /// [`Error::Cancelled`] if the act was cancelled.
    pub(crate) fn add(&self, bytes: u64) -> Result<()> {
        self.0.done.fetch_add(bytes, Ordering::Relaxed);
        #[cfg(test)]
        if (1..=self.done()).contains(&self.0.cancels_at.load(Ordering::Relaxed)) {
            self.cancel();
        }
        self.check()
    }

    /// Counts all as done except the last `rest` bytes: the phases before them may have skipped some.
    ///
    /// # Errors
    /// As [`Progress::add`].
    pub(crate) fn reach_all_but(&self, rest: u64) -> Result<()> {
        self.0.done.fetch_max(self.total().saturating_sub(rest), Ordering::Relaxed);
        self.check()
    }

    /// Counts all as done. The act has succeeded, so it cannot be cancelled any more.
    pub(crate) fn finish(&self) {
        self.0.done.fetch_max(self.total(), Ordering::Relaxed);
    }

    /// Makes a progress that cancels its act once that has counted `bytes`.
    #[cfg(test)]
    pub(crate) fn cancelling_at(bytes: u64) -> Self {
        let progress = Self::default();
        progress.0.cancels_at.store(bytes, Ordering::Relaxed);
        progress
    }

    /// Checks whether the act was cancelled. The library's acts do this themselves.
    ///
    /// # Errors
    /// [`Error::Cancelled`] if it was.
    pub fn check(&self) -> Result<()> {
        if self.0.is_cancelled.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
    }
}
