//! Snapshots that are being taken, and the load that is under way: their progress, for events and requests,
//! and their cancelling.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use volt_vmm::Progress;

/// Kinds of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperationOf {
    Snapshot,
    Load,
}

/// The operations that are under way, the oldest first. Cloning shares them.
#[derive(Clone, Debug, Default)]
pub(super) struct Operations(Arc<Mutex<Vec<Ongoing>>>);

#[derive(Clone, Debug)]
struct Ongoing {
    number: u64,
    kind: OperationOf,
    progress: Progress,
}

/// An operation in the list, until it is dropped.
#[derive(Debug)]
pub(super) struct Operation {
    all: Operations,
    number: u64,
}

impl Operations {
    // No holder of the lock panics.
    fn lock(&self) -> MutexGuard<'_, Vec<Ongoing>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an operation.
    pub(super) fn begin(&self, kind: OperationOf, progress: &Progress) -> Operation {
        let mut all = self.lock();
        let number = all.last().map_or(0, |last| last.number + 1);
        all.push(Ongoing { number, kind, progress: progress.clone() });
        Operation { all: self.clone(), number }
    }

    /// The progress of the operation that is under way. A VM takes one snapshot at a time, in any order: one
    /// that has begun comes before those that wait, and of these the oldest is next.
    pub(super) fn current(&self) -> Option<(OperationOf, Progress)> {
        Self::current_of(&self.lock(), |_| true).map(|found| (found.kind, found.progress.clone()))
    }

    /// As [`Operations::current`], for a kind.
    pub(super) fn current_of_kind(&self, kind: OperationOf) -> Option<Progress> {
        Self::current_of(&self.lock(), |found| found.kind == kind).map(|found| found.progress.clone())
    }

    fn current_of(all: &[Ongoing], is_wanted: impl Fn(&&Ongoing) -> bool) -> Option<&Ongoing> {
        let begun = all.iter().filter(&is_wanted).find(|found| found.progress.total() > 0);
        begun.or_else(|| all.iter().find(is_wanted))
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        self.all.lock().retain(|other| other.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshot_that_has_begun_comes_before_those_that_wait() {
        let operations = Operations::default();
        let [waiting, taken] = [Progress::default(), Progress::default()];
        let _waiting = operations.begin(OperationOf::Snapshot, &waiting);
        let begun = operations.begin(OperationOf::Snapshot, &taken);
        taken.begin(8);
        assert_eq!(operations.current().unwrap().1.total(), 8);
        drop(begun);
        assert_eq!(operations.current().unwrap().1.total(), 0);
    }

    #[test]
    fn load_is_no_snapshot() {
        let (operations, progress) = (Operations::default(), Progress::default());
        let _load = operations.begin(OperationOf::Load, &progress);
        progress.begin(8);
        assert_eq!(operations.current().unwrap().0, OperationOf::Load);
        assert!(operations.current_of_kind(OperationOf::Snapshot).is_none());
        assert_eq!(operations.current_of_kind(OperationOf::Load).unwrap().total(), 8);
    }

    #[test]
    fn oldest_operation_is_told_until_it_ends() {
        let operations = Operations::default();
        assert!(operations.current().is_none());
        let (first, second) = (Progress::default(), Progress::default());
        let begin = |progress| operations.begin(OperationOf::Snapshot, progress);
        let [one, two] = [&first, &second].map(begin);
        operations.current().unwrap().1.cancel();
        drop(one);
        let third = begin(&Progress::default());
        drop(two);
        assert!(operations.current().is_some());
        drop(third);
        assert!(operations.current().is_none());
    }
}
