//! Runs one test on a thread of its own, which is abandoned when the limit has passed: no thread can be
//! ended from outside. The processes that the thread started are killed, and those of its helper threads if
//! no other test runs.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use crate::Case;
use crate::children::{kill_all_children, kill_children, thread_runs};

/// A test that runs longer than this is named, as libtest does.
const LONG: Duration = Duration::from_secs(60);
/// Time between two kills of an abandoned test's processes.
const KILL_AGAIN: Duration = Duration::from_secs(1);

/// The end of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    /// With its reason.
    Skipped(String),
    /// With its message.
    Failed(String),
    /// With its message; the test may still run.
    TimedOut(String),
}

thread_local! {
    static NEEDS: Cell<Option<&'static [(&'static str, crate::Need)]>> = const { Cell::new(None) };
    static WATCHED: RefCell<Option<Sender<Outcome>>> = const { RefCell::new(None) };
    static SKIPPED: RefCell<Option<String>> = const { RefCell::new(None) };
    static PANIC: RefCell<PanicMessage> = RefCell::default();
}

/// The messages of the panics on the thread of a test. The runner reads it even if the thread then blocks.
type PanicMessage = Arc<Mutex<Option<String>>>;

fn take(panic: &PanicMessage) -> Option<String> {
    panic.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Counts the running test as skipped, for a reason that only the test itself could find. The test must
/// return then.
///
/// # Panics
/// This is not the thread of a test.
pub fn skip(reason: &str) {
    assert!(NEEDS.get().is_some(), "only the thread of a test can skip it");
    SKIPPED.set(Some(reason.to_owned()));
}

/// Names what the running test needs, as registered.
#[must_use]
pub fn needs() -> Vec<&'static str> {
    NEEDS.get().into_iter().flatten().map(|(name, _)| *name).collect()
}

/// The right to fail a test from another thread, for a wait that blocks the thread of the test.
#[derive(Debug)]
pub struct Watch(Option<Sender<Outcome>>);

/// Returns the right to fail the running test. Outside the thread of a test it has no effect.
#[must_use]
pub fn watch() -> Watch {
    Watch(WATCHED.with_borrow(Clone::clone))
}

impl Watch {
    /// Fails the test with this message, and abandons its thread.
    pub fn abandon(self, message: String) {
        if let Some(test) = self.0 {
            // The receiver is gone if the test has ended.
            let _ = test.send(Outcome::TimedOut(message));
        }
    }
}

/// Keeps the message of each panic for the report of its test. The message still goes to standard error
/// at once: this process may end before the report.
pub(crate) fn keep_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let at = panic.location().map(ToString::to_string).unwrap_or_default();
            let said = panic.payload_as_str().unwrap_or("(not text)");
            let message = format!("panicked at {at}:\n{said}");
            PANIC.with_borrow(|kept| {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                // A destructor may panic while the first panic unwinds.
                *kept = kept.take().into_iter().chain([message]).reduce(|first, next| first + "\n" + &next);
            });
            usual(panic);
        }));
    });
}

/// Runs a test, and returns its outcome and how long it took. `is_alone` tells that no other test runs
/// meanwhile.
pub(crate) fn run_limited(case: &Case, is_alone: bool) -> (Outcome, Duration) {
    let start = Instant::now();
    let (done, ended) = channel();
    let (begun, thread_id) = channel();
    let (run, needs) = (case.test.run, case.test.needs);
    let panic = PanicMessage::default();
    let kept = Arc::clone(&panic);
    let thread = std::thread::Builder::new().name(case.name.clone()).spawn(move || {
        NEEDS.set(Some(needs));
        WATCHED.set(Some(done.clone()));
        PANIC.set(Arc::clone(&kept));
        let _ = begun.send(rustix::thread::gettid());
        let result = catch_unwind(AssertUnwindSafe(run));
        let outcome = match (result, SKIPPED.take()) {
            (Err(_), _) => Outcome::Failed(take(&kept).unwrap_or_default()),
            (Ok(()), Some(reason)) => Outcome::Skipped(reason),
            (Ok(()), None) => Outcome::Passed,
        };
        // The receiver is gone if the limit has passed.
        let _ = done.send(outcome);
    });
    if let Err(error) = thread {
        return (Outcome::Failed(format!("cannot start a thread for the test: {error}")), start.elapsed());
    }
    let mut received = ended.recv_timeout(case.limit.min(LONG));
    if received == Err(RecvTimeoutError::Timeout) && case.limit > LONG {
        eprintln!("{} has run for {LONG:?}; its limit is {:?}", case.name, case.limit);
        received = ended.recv_timeout(case.limit - LONG);
    }
    let is_over = received.is_err();
    let outcome = received
        .unwrap_or_else(|_| Outcome::TimedOut(format!("did not end within its limit of {:?}", case.limit)));
    let Outcome::TimedOut(message) = outcome else { return (outcome, start.elapsed()) };
    // A thread that unwinds can block too, in a destructor.
    let panic = take(&panic);
    if is_over && panic.is_none() {
        eprintln!("LIMIT: {} {message}", case.name);
    }
    let message = panic.into_iter().chain([message]).collect::<Vec<_>>().join("\n");
    if let Ok(thread) = thread_id.try_recv() {
        if is_alone {
            kill_all_children();
        } else {
            kill_children(thread);
        }
        // The death of a child may let the thread go on, and start others.
        let again = move || {
            while thread_runs(thread) {
                std::thread::sleep(KILL_AGAIN);
                kill_children(thread);
            }
        };
        let _ = std::thread::Builder::new().name("abandoned".to_owned()).spawn(again);
    }
    (Outcome::TimedOut(message), start.elapsed())
}
