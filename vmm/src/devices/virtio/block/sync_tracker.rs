//! Decides whether a sync of a file succeeded. The kernel reports a failed writeback to one sync of an open
//! file and its duplicates: of several syncs in progress, one gets the error of all. A sync has therefore
//! succeeded if the kernel says so, no earlier sync failed, and no overlapping sync fails.
//!
//! ```text
//!   begin ──> fsync, by this thread or io_uring ──> end: record the result, then wait for overlapping syncs
//! ```
//!
//! Only [`PendingSync::end`] reports success. A thread records the result of its sync before it waits for
//! the sync of another thread, and never has two syncs in progress.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Condvar, Mutex, OnceLock};

use super::live_map::Revocation;
use crate::sync::{lock, wait_while};

/// The syncs of an open file and its duplicates.
#[derive(Debug, Default)]
pub struct SyncTracker {
    state: Mutex<SyncState>,
    recorded: Condvar,
    /// Set for a layer that is written: a process that opens the layer later cannot ask this one for failed
    /// syncs.
    on_failure: OnceLock<Revocation>,
}

#[derive(Debug, Default)]
struct SyncState {
    /// Syncs that began.
    begun: u64,
    /// Syncs without a recorded result, numbered as they began.
    under_way: BTreeSet<u64>,
    /// A sync failed: its data may be lost even if the next sync succeeds.
    failed: bool,
}

/// A sync in progress. Dropping it without a recorded result counts as a failure.
#[derive(Debug)]
pub struct PendingSync {
    syncs: Arc<SyncTracker>,
    /// `None` once the result is recorded.
    number: Option<u64>,
}

impl SyncTracker {
    /// Begins a sync.
    ///
    /// # Errors
    /// An earlier sync failed.
    pub fn begin(self: &Arc<Self>) -> io::Result<PendingSync> {
        let mut state = lock(&self.state);
        state.check()?;
        state.begun += 1;
        let number = state.begun;
        state.under_way.insert(number);
        Ok(PendingSync { syncs: Arc::clone(self), number: Some(number) })
    }

    /// Returns an error if a sync failed.
    pub fn check(&self) -> io::Result<()> {
        lock(&self.state).check()
    }

    /// Revokes a layer's live map when a sync fails.
    pub fn revoke_on_failure(&self, live_map: Revocation) {
        self.on_failure.get_or_init(|| live_map);
    }

    /// Makes all further syncs fail. A layer's live map stays, because no sync has failed.
    pub fn refuse(&self) {
        lock(&self.state).failed = true;
    }

    fn record_failure(&self, state: &mut SyncState) {
        state.failed = true;
        if let Some(live_map) = self.on_failure.get()
            && let Err(error) = live_map.revoke()
        {
            log::error!(
                "cannot mark layer {} as failed after a failed sync: {error}; remove the layer once this VM \
                 has ended, because it may have lost completed writes",
                live_map.name()
            );
        }
    }

    /// Lets syncs succeed again: the data of failed and refused syncs is not in the file any more.
    pub fn forget_failures(&self) {
        lock(&self.state).failed = false;
    }

    /// The number of syncs that began.
    #[cfg(test)]
    pub fn begun(&self) -> u64 {
        lock(&self.state).begun
    }
}

impl SyncState {
    fn check(&self) -> io::Result<()> {
        match self.failed {
            true => Err(io::Error::other("an earlier sync failed, so its data may be lost")),
            false => Ok(()),
        }
    }
}

impl PendingSync {
    /// Records the result, and waits for the results of overlapping syncs.
    ///
    /// # Errors
    /// This sync failed, or another one did.
    pub fn end(&mut self, done: io::Result<()>) -> io::Result<()> {
        let last = self.record(done.is_ok());
        done?;
        let overlapped = |state: &mut SyncState| {
            !state.failed && state.under_way.first().is_some_and(|first| *first <= last)
        };
        wait_while(&self.syncs.recorded, lock(&self.syncs.state), overlapped).check()
    }

    /// Records the result without reporting success. Returns the number of the last sync that began.
    pub fn record(&mut self, succeeded: bool) -> u64 {
        let mut state = lock(&self.syncs.state);
        if let Some(number) = self.number.take() {
            state.under_way.remove(&number);
            if !succeeded {
                self.syncs.record_failure(&mut state);
            }
            self.syncs.recorded.notify_all();
        }
        state.begun
    }
}

impl Drop for PendingSync {
    fn drop(&mut self) {
        self.record(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::limited;

    /// The syncs of two threads overlap, and the first to end has no error.
    #[test]
    fn sync_succeeds_if_all_overlapping_syncs_do() {
        for other_succeeds in [true, false] {
            let syncs = Arc::<SyncTracker>::default();
            let (mut one, mut other) = (syncs.begin().unwrap(), syncs.begin().unwrap());
            let thread = std::thread::spawn(move || one.end(Ok(())));
            limited("the first result is recorded", || {
                drop(wait_while(&syncs.recorded, lock(&syncs.state), |state| state.under_way.contains(&1)));
            });
            let done = if other_succeeds { Ok(()) } else { Err(io::ErrorKind::Other.into()) };
            assert_eq!(limited("the other sync ends", || other.end(done)).is_ok(), other_succeeds);
            let first = limited("the first sync ends", || thread.join().unwrap());
            assert_eq!(first.is_ok(), other_succeeds);
            assert_eq!(syncs.begin().is_ok(), other_succeeds);
        }
    }

    #[test]
    fn sync_without_a_recorded_result_counts_as_failed() {
        let syncs = Arc::<SyncTracker>::default();
        drop(syncs.begin().unwrap());
        syncs.begin().unwrap_err();
        syncs.forget_failures();
        syncs.begin().unwrap().end(Ok(())).unwrap();
    }
}
