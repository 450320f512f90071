//! A shim of the ring for tests: one completion gets another result than the kernel's.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Another result of a completion.
#[derive(Clone, Copy, Debug)]
pub enum OtherResult {
    /// This error.
    Error(i32),
    /// Half of the bytes.
    Half,
}

/// The plan for the completions of one engine.
#[derive(Clone, Debug, Default)]
pub struct CompletionFault {
    /// The number of the completion, from 0, and its result.
    planned: Option<(usize, OtherResult)>,
    seen: Arc<AtomicUsize>,
}

thread_local! {
    static NEXT: RefCell<CompletionFault> = RefCell::default();
}

impl CompletionFault {
    /// Plans a fault for the next engine that this thread makes. Returns the number of its completions, which
    /// grows while it works.
    pub fn plan(planned: Option<(usize, OtherResult)>) -> Arc<AtomicUsize> {
        let fault = Self { planned, ..Self::default() };
        let seen = Arc::clone(&fault.seen);
        NEXT.set(fault);
        seen
    }

    /// Takes the plan for a new engine.
    pub fn of_new_engine() -> Self {
        NEXT.take()
    }

    /// Returns the result that the engine gets.
    pub fn alter(&self, result: i32) -> i32 {
        let number = self.seen.fetch_add(1, Ordering::Relaxed);
        match self.planned {
            Some((planned, OtherResult::Error(errno))) if planned == number => -errno,
            Some((planned, OtherResult::Half)) if planned == number && result > 1 => result / 2,
            _ => result,
        }
    }
}
