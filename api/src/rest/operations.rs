//! Snapshots, forks and the load that are under way or wait for their turn: their progress, for events and
//! requests, and their cancelling.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use volt_vmm::Progress;

use super::error::Fault;

/// Longest id that a client may choose.
const LONGEST_ID: usize = 64;

/// Kinds of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OperationOf {
    Snapshot,
    Fork,
    Load,
}

/// The operations that are under way, the oldest first. Cloning shares them.
#[derive(Clone, Debug, Default)]
pub(super) struct Operations(Arc<Mutex<All>>);

#[derive(Debug, Default)]
struct All {
    ongoing: Vec<Ongoing>,
    /// The number of the next one. No number is used again, because clients may cancel by it late.
    next: u64,
}

#[derive(Clone, Debug)]
struct Ongoing {
    number: u64,
    /// The client's choice, or the number.
    id: String,
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
    fn lock(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an operation. `id` is the client's choice.
    ///
    /// # Errors
    /// The id is invalid, or another operation has it.
    pub(super) fn begin(
        &self,
        kind: OperationOf,
        id: Option<String>,
        progress: &Progress,
    ) -> Result<Operation, Fault> {
        let mut all = self.lock();
        let is_taken = |id: &str| all.ongoing.iter().any(|other| other.id == id);
        // A client may have chosen a number.
        let free = |number: u64| Some((number, number.to_string())).filter(|(_, id)| !is_taken(id));
        let (number, next_id) = (all.next..).find_map(free).unwrap_or_default();
        let id = match id {
            None => next_id,
            Some(id) if !is_valid(&id) => {
                let problem = "operation: an id has 1 to 64 letters, digits, `_` and `-`";
                return Err(Fault::refused(problem));
            }
            Some(id) if is_taken(&id) => {
                return Err(Fault::refused(format!(
                    "operation: another one has the id {id}; choose another"
                )));
            }
            Some(id) => id,
        };
        all.next = number + 1;
        all.ongoing.push(Ongoing { number, id, kind, progress: progress.clone() });
        Ok(Operation { all: self.clone(), number })
    }

    /// Describes all operations, the oldest first.
    pub(super) fn list(&self) -> Vec<OperationState> {
        self.lock().ongoing.iter().map(Ongoing::state).collect()
    }

    /// Returns the progress of the operation with this id.
    pub(super) fn progress_of(&self, id: &str) -> Option<Progress> {
        let all = self.lock();
        let found = all.ongoing.iter().find(|operation| operation.id == id);
        found.map(|operation| operation.progress.clone())
    }

    /// The progress of the operation that is under way. A VM takes one snapshot at a time, in any order: one
    /// that has begun comes before those that wait, and of these the oldest is next.
    pub(super) fn current(&self) -> Option<(OperationOf, Progress)> {
        Self::current_of(&self.lock().ongoing, |_| true).map(|found| (found.kind, found.progress.clone()))
    }

    /// As [`Operations::current`], for a kind.
    pub(super) fn current_of_kind(&self, kind: OperationOf) -> Option<Progress> {
        Self::current_of(&self.lock().ongoing, |found| found.kind == kind).map(|found| found.progress.clone())
    }

    fn current_of(all: &[Ongoing], is_wanted: impl Fn(&&Ongoing) -> bool) -> Option<&Ongoing> {
        let begun = all.iter().filter(&is_wanted).find(|found| found.progress.total() > 0);
        begun.or_else(|| all.iter().find(is_wanted))
    }
}

/// An operation, as clients see it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct OperationState {
    pub(crate) id: String,
    pub(crate) kind: OperationOf,
    /// Bytes worked through.
    pub(crate) done_bytes: u64,
    /// Bytes in all, as far as they are known. 0 while the operation waits for its turn.
    pub(crate) total_bytes: u64,
}

impl Ongoing {
    fn state(&self) -> OperationState {
        let Self { id, kind, progress, .. } = self;
        let (done_bytes, total_bytes) = (progress.done(), progress.total());
        OperationState { id: id.clone(), kind: *kind, done_bytes, total_bytes }
    }
}

fn is_valid(id: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    (1..=LONGEST_ID).contains(&id.len()) && id.bytes().all(is_allowed)
}

impl Drop for Operation {
    fn drop(&mut self) {
        self.all.lock().ongoing.retain(|other| other.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(all: &Operations, kind: OperationOf, progress: &Progress) -> Operation {
        all.begin(kind, None, progress).unwrap()
    }

    #[test]
    fn snapshot_that_has_begun_comes_before_those_that_wait() {
        let operations = Operations::default();
        let [waiting, taken] = [Progress::default(), Progress::default()];
        let _waiting = begin(&operations, OperationOf::Snapshot, &waiting);
        let begun = begin(&operations, OperationOf::Snapshot, &taken);
        taken.begin(8);
        assert_eq!(operations.current().unwrap().1.total(), 8);
        drop(begun);
        assert_eq!(operations.current().unwrap().1.total(), 0);
    }

    #[test]
    fn load_is_no_snapshot() {
        let (operations, progress) = (Operations::default(), Progress::default());
        let _load = begin(&operations, OperationOf::Load, &progress);
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
        let begin = |progress| begin(&operations, OperationOf::Snapshot, progress);
        let [one, two] = [&first, &second].map(begin);
        operations.current().unwrap().1.cancel();
        drop(one);
        let third = begin(&Progress::default());
        drop(two);
        assert!(operations.current().is_some());
        drop(third);
        assert!(operations.current().is_none());
    }

    #[test]
    fn operation_is_cancelled_by_its_own_id() {
        let (operations, first, second) = (Operations::default(), Progress::default(), Progress::default());
        let of = |id: &str, progress| operations.begin(OperationOf::Fork, Some(id.to_owned()), progress);
        let chosen = of("1", &first).unwrap();
        let numbered = begin(&operations, OperationOf::Snapshot, &second);
        second.begin(8);
        let state = |id: &str, kind, total_bytes| {
            let id = id.to_owned();
            OperationState { id, kind, done_bytes: 0, total_bytes }
        };
        let both = [state("1", OperationOf::Fork, 0), state("2", OperationOf::Snapshot, 8)];
        assert_eq!(operations.list(), both);
        assert!(operations.progress_of("1").unwrap().cancel() && operations.progress_of("3").is_none());
        assert!(first.check().is_err() && second.check().is_ok());
        assert!(of("2", &first).is_err(), "it is taken");
        drop((chosen, numbered));
        assert!(operations.list().is_empty() && operations.progress_of("2").is_none());
        let _again = begin(&operations, OperationOf::Snapshot, &second);
        assert_eq!(operations.list()[0].id, "3", "no number is used again");
        for id in ["", "a/b", "ä", &"x".repeat(LONGEST_ID + 1)] {
            assert!(of(id, &first).is_err(), "{id}");
        }
        of(&"x".repeat(LONGEST_ID), &first).unwrap();
    }
}
