//! The outcome of a VM whose process a signal handler ends. A handler can neither allocate nor take a lock.
#![allow(unsafe_code)]

use std::io::Write;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicI32, Ordering};

use super::outcome::{Cause, ROOM};

/// There is no outcome to write, or it is written.
const NONE: i32 = -1;
/// A thread writes the outcome.
const WRITING: i32 = -2;
/// Most turns that a handler waits for another thread to write.
const TURNS: u32 = 10_000_000;

/// The descriptor of the outcome's file, [`NONE`] or [`WRITING`].
static OUTCOME: AtomicI32 = AtomicI32::new(NONE);

/// Lets handlers write to the file of the outcome, which stays open.
pub(crate) fn expect(outcome: &impl AsRawFd) {
    OUTCOME.store(outcome.as_raw_fd(), Ordering::SeqCst);
}

/// Returns the file's descriptor to the one thread that shall write the outcome. [`written`] follows.
pub(crate) fn claim() -> Option<i32> {
    let number = OUTCOME.load(Ordering::SeqCst);
    let is_claimed = || OUTCOME.compare_exchange(number, WRITING, Ordering::SeqCst, Ordering::SeqCst).is_ok();
    (number >= 0 && is_claimed()).then_some(number)
}

/// Says that the outcome is written.
pub(crate) fn written() {
    OUTCOME.store(NONE, Ordering::SeqCst);
}

/// Writes the outcome, without its time, unless it is known. Returns once it is written, by whichever thread:
/// the process ends next. Async-signal-safe.
pub(crate) fn record(status: u8, cause: Cause, message: &'static str) {
    let Some(number) = claim() else {
        let is_written = |_: &u32| OUTCOME.load(Ordering::SeqCst) != WRITING;
        let _ = (0..TURNS).inspect(|_| std::hint::spin_loop()).find(is_written);
        return;
    };
    // SAFETY: it stays open, by `expect`.
    let file = unsafe { BorrowedFd::borrow_raw(number) };
    let _ = rustix::io::write(file, &text(status, cause, message));
    written();
}

/// The outcome as [`super::outcome::EndOfVm`] reads it, in the whole of its room.
fn text(status: u8, cause: Cause, message: &str) -> [u8; ROOM] {
    let cause = match cause {
        Cause::Crashed => "crashed",
        Cause::Signal => "signal",
        _ => "failed",
    };
    let mut room = [b' '; ROOM];
    // The messages are constants of a line.
    let _ = writeln!(
        &mut room[..],
        r#"{{"status":{status},"cause":"{cause}","message":"{message}","ended":null}}"#
    );
    room
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_dir::outcome::EndOfVm;

    #[test]
    fn outcome_of_a_handler_is_read_as_others_are() {
        for (status, cause) in [(5, Cause::Crashed), (139, Cause::Signal), (6, Cause::Failed)] {
            let text = text(status, cause, "why");
            let end = EndOfVm { status, cause, message: "why".to_owned(), ended: None };
            assert_eq!(EndOfVm::parse(std::str::from_utf8(&text).unwrap()), Some(end));
        }
    }
}
