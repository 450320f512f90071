//! The progress of a long act, and a way to cancel it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::error::{Error, Result};

/// Follows one long act from any thread, and cancels it. Clones share the act.
///
/// An act counts the bytes that it has worked through. A cancelled act fails with [`Error::Cancelled`] within
/// some MiB of work, and leaves nothing of what it made. A sync under way takes its time: the host's disk
/// then has to take all that was written. At its end an act is committed, and cannot be cancelled any more.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    done: AtomicU64,
    total: AtomicU64,
    /// One of the constants of [`Progress`].
    end: AtomicU8,
    /// The act is cancelled once it has counted this many bytes; never if 0.
    #[cfg(test)]
    cancels_at: AtomicU64,
}

impl Progress {
    const OPEN: u8 = 0;
    const CANCELLED: u8 = 1;
    const COMMITTED: u8 = 2;

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

    /// Cancels the act, now or when it begins. Returns false if it is too late: the act is committed.
    pub fn cancel(&self) -> bool {
        self.end_as(Self::CANCELLED)
    }

    /// Commits the act, which cannot be cancelled from then on. The library's acts do this themselves, before
    /// they publish what they made.
    ///
    /// # Errors
    /// [`Error::Cancelled`] if the act was cancelled.
    pub fn commit(&self) -> Result<()> {
        if self.end_as(Self::COMMITTED) { Ok(()) } else { Err(Error::Cancelled) }
    }

    /// Returns whether the act ends so, which the first call decides.
    fn end_as(&self, end: u8) -> bool {
        let decided = self.0.end.compare_exchange(Self::OPEN, end, Ordering::SeqCst, Ordering::SeqCst);
        decided.is_ok() || decided == Err(end)
    }

    /// Begins an act that works through `total` bytes, and that can be cancelled even if an earlier act with
    /// this progress was committed. The library's acts do this themselves.
    pub fn begin(&self, total: u64) {
        let _ = self.0.end.compare_exchange(Self::COMMITTED, Self::OPEN, Ordering::SeqCst, Ordering::SeqCst);
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
        match self.0.end.load(Ordering::Relaxed) {
            Self::CANCELLED => Err(Error::Cancelled),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn act_is_either_cancelled_or_committed() {
        let progress = Progress::default();
        assert!(progress.cancel() && progress.cancel());
        assert!(progress.check().is_err() && progress.commit().is_err());
        let progress = Progress::default();
        progress.commit().unwrap();
        assert!(!progress.cancel() && progress.check().is_ok() && progress.commit().is_ok());
        progress.begin(8);
        assert!(progress.cancel() && progress.commit().is_err(), "the next act can be cancelled again");
        progress.begin(8);
        assert!(progress.check().is_err(), "an act is cancelled before it begins");
    }
}
