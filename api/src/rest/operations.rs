//! Snapshots that are being taken: their progress, for events and requests, and their cancelling.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use volt_vmm::Progress;

/// The snapshots that are being taken, the oldest first. Cloning shares them.
#[derive(Clone, Debug, Default)]
pub(super) struct Operations(Arc<Mutex<Vec<(u64, Progress)>>>);

/// A snapshot in the list, until it is dropped.
#[derive(Debug)]
pub(super) struct Operation {
    all: Operations,
    number: u64,
}

impl Operations {
    // No holder of the lock panics.
    fn lock(&self) -> MutexGuard<'_, Vec<(u64, Progress)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a snapshot.
    pub(super) fn begin(&self, progress: &Progress) -> Operation {
        let mut all = self.lock();
        let number = all.last().map_or(0, |(last, _)| last + 1);
        all.push((number, progress.clone()));
        Operation { all: self.clone(), number }
    }

    /// The progress of the snapshot that is being taken. A VM takes one at a time, in any order: one that has
    /// begun comes before those that wait, and of these the oldest is next.
    pub(super) fn current(&self) -> Option<Progress> {
        let all = self.lock();
        let begun = all.iter().find(|(_, progress)| progress.total() > 0);
        begun.or(all.first()).map(|(_, progress)| progress.clone())
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        self.all.lock().retain(|(number, _)| *number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshot_that_has_begun_comes_before_those_that_wait() {
        let operations = Operations::default();
        let [waiting, taken] = [Progress::default(), Progress::default()];
        let _waiting = operations.begin(&waiting);
        let begun = operations.begin(&taken);
        taken.begin(8);
        assert_eq!(operations.current().unwrap().total(), 8);
        drop(begun);
        assert_eq!(operations.current().unwrap().total(), 0);
    }

    #[test]
    fn oldest_operation_is_told_until_it_ends() {
        let operations = Operations::default();
        assert!(operations.current().is_none());
        let (first, second) = (Progress::default(), Progress::default());
        let [one, two] = [&first, &second].map(|progress| operations.begin(progress));
        operations.current().unwrap().cancel();
        drop(one);
        let third = operations.begin(&Progress::default());
        drop(two);
        assert!(operations.current().is_some());
        drop(third);
        assert!(operations.current().is_none());
    }
}
