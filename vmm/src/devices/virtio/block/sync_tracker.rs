//! Says whether a sync of a file succeeded. The kernel reports a failed writeback to one sync of an open file
//! and its duplicates: of those under way at once, one gets the error of all. A sync has therefore succeeded
//! if the kernel says so, no earlier one failed, and none that overlaps it fails.
//!
//! ```text
//!   begin ──> fsync, by this thread or io_uring ──> end: note the result, then wait for those that overlap to be noted
//! ```
//!
//! Nothing but [`PendingSync::end`] says that a sync succeeded. A thread that has a sync under way notes its
//! result before it waits for one of another thread, and has no two under way.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Condvar, Mutex, OnceLock};

use super::live_map::Revocation;
use crate::sync::{lock, wait_while};

/// The syncs of an open file and its duplicates.
#[derive(Debug, Default)]
pub struct SyncTracker {
    ledger: Mutex<SyncState>,
    noted: Condvar,
    /// For a layer that is written: whoever opens it later cannot ask this process whether a sync failed.
    on_failure: OnceLock<Revocation>,
}

#[derive(Debug, Default)]
struct SyncState {
    /// The number of syncs that began.
    begun: u64,
    /// Those whose results are not noted yet, numbered as they began.
    under_way: BTreeSet<u64>,
    /// One failed: what it was for may be lost, though the next may succeed.
    failed: bool,
}

/// A sync that began. One that is dropped before its result is noted counts as failed.
#[derive(Debug)]
pub struct PendingSync {
    syncs: Arc<SyncTracker>,
    /// `None` once the result is noted.
    number: Option<u64>,
}

impl SyncTracker {
    /// Begins a sync.
    ///
    /// # Errors
    /// An earlier one failed.
    pub fn begin(self: &Arc<Self>) -> io::Result<PendingSync> {
        let mut ledger = lock(&self.ledger);
        ledger.check()?;
        ledger.begun += 1;
        let number = ledger.begun;
        ledger.under_way.insert(number);
        Ok(PendingSync { syncs: Arc::clone(self), number: Some(number) })
    }

    /// Returns an error if a sync failed.
    pub fn check(&self) -> io::Result<()> {
        lock(&self.ledger).check()
    }

    /// Has a layer's live map revoked when a sync fails.
    pub fn revoke_on_failure(&self, live_map: Revocation) {
        self.on_failure.get_or_init(|| live_map);
    }

    /// Lets no sync succeed from now on. A layer's live map stays: no sync failed.
    pub fn refuse(&self) {
        lock(&self.ledger).failed = true;
    }

    fn note_failure(&self, ledger: &mut SyncState) {
        ledger.failed = true;
        if let Some(live_map) = self.on_failure.get()
            && let Err(error) = live_map.revoke()
        {
            log::error!(
                "cannot mark layer {} as failed after a failed sync: {error}; once this VM has ended remove the \
                 layer, which may have lost writes that it counts as done",
                live_map.name()
            );
        }
    }

    /// Lets syncs succeed again: what failed or refused ones were for is not in the file any more.
    pub fn forget_failures(&self) {
        lock(&self.ledger).failed = false;
    }

    /// The number of syncs that began.
    #[cfg(test)]
    pub fn begun(&self) -> u64 {
        lock(&self.ledger).begun
    }
}

impl SyncState {
    fn check(&self) -> io::Result<()> {
        match self.failed {
            true => Err(io::Error::other("an earlier sync failed, and what it was for may be lost")),
            false => Ok(()),
        }
    }
}

impl PendingSync {
    /// Notes the result, and waits for those of the syncs that overlap this one.
    ///
    /// # Errors
    /// This one failed, or another did.
    pub fn end(&mut self, done: io::Result<()>) -> io::Result<()> {
        let last = self.note(done.is_ok());
        done?;
        let overlapped = |ledger: &mut SyncState| {
            !ledger.failed && ledger.under_way.first().is_some_and(|first| *first <= last)
        };
        wait_while(&self.syncs.noted, lock(&self.syncs.ledger), overlapped).check()
    }

    /// Notes the result of a sync whose success nobody is told of. Returns the number of the last one that
    /// began.
    pub fn note(&mut self, succeeded: bool) -> u64 {
        let mut ledger = lock(&self.syncs.ledger);
        if let Some(number) = self.number.take() {
            ledger.under_way.remove(&number);
            if !succeeded {
                self.syncs.note_failure(&mut ledger);
            }
            self.syncs.noted.notify_all();
        }
        ledger.begun
    }
}

impl Drop for PendingSync {
    fn drop(&mut self) {
        self.note(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::limited;

    /// Two threads whose syncs overlap, of which the first to end has no error.
    #[test]
    fn sync_succeeds_when_all_that_overlap_it_have() {
        for other_succeeds in [true, false] {
            let syncs = Arc::<SyncTracker>::default();
            let (mut one, mut other) = (syncs.begin().unwrap(), syncs.begin().unwrap());
            let thread = std::thread::spawn(move || one.end(Ok(())));
            limited("the first result is noted", || {
                drop(wait_while(&syncs.noted, lock(&syncs.ledger), |ledger| ledger.under_way.contains(&1)));
            });
            let done = if other_succeeds { Ok(()) } else { Err(io::ErrorKind::Other.into()) };
            assert_eq!(limited("the other sync ends", || other.end(done)).is_ok(), other_succeeds);
            let first = limited("the first sync ends", || thread.join().unwrap());
            assert_eq!(first.is_ok(), other_succeeds);
            assert_eq!(syncs.begin().is_ok(), other_succeeds);
        }
    }

    #[test]
    fn sync_whose_result_nobody_notes_counts_as_failed() {
        let syncs = Arc::<SyncTracker>::default();
        drop(syncs.begin().unwrap());
        syncs.begin().unwrap_err();
        syncs.forget_failures();
        syncs.begin().unwrap().end(Ok(())).unwrap();
    }
}
