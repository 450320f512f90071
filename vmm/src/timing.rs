//! Times the steps of a boot or restore. A mark costs a read of a thread-local variable unless a recording
//! runs.

use std::cell::RefCell;
#[cfg(any(feature = "internal", test))]
use std::time::Duration;
use std::time::Instant;

thread_local! {
    static RECORD: RefCell<Option<Vec<(&'static str, Instant)>>> = const { RefCell::new(None) };
}

/// Marks the end of a step, on this thread.
pub(crate) fn step_done(name: &'static str) {
    RECORD.with_borrow_mut(|record| {
        if let Some(record) = record {
            record.push((name, Instant::now()));
        }
    });
}

/// Runs `work` and returns the duration of each of its steps on this thread, in order. A name may come more
/// than once.
#[cfg(any(feature = "internal", test))]
pub fn record<T>(work: impl FnOnce() -> T) -> (T, Vec<(&'static str, Duration)>) {
    RECORD.set(Some(Vec::with_capacity(32)));
    let mut last = Instant::now();
    let done = work();
    let marks = RECORD.take().unwrap_or_default();
    let steps = marks.into_iter().map(|(name, at)| {
        let took = at - last;
        last = at;
        (name, took)
    });
    (done, steps.collect())
}
