//! Shows the progress of a step on standard error once it has taken a second.

use std::io::{IsTerminal, Write, stderr};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use volt_vmm::Progress;
use volt_vmm::internal::named_thread;

use crate::failure::Failure;
use crate::messages::CLEAR_LINE;
use crate::terminal::interrupts::Interrupts;

/// Time between two looks at a step.
const TICK: Duration = Duration::from_millis(200);
/// Time without a word: most steps end before.
const QUIET: Duration = Duration::from_secs(1);

/// Runs `step`. After one second it prints `what` and the elapsed time. A terminal gets one line that is
/// rewritten; anything else gets a line at once and then every ten seconds.
pub(crate) fn during<T>(what: &str, step: impl FnOnce() -> T) -> T {
    thread::scope(|scope| {
        let (done, ended) = channel::<()>();
        // The step runs without progress if the host cannot start the thread.
        let _ = ticker().spawn_scoped(scope, move || tick(what, || {}, || (0, 0), ended));
        let outcome = step();
        drop(done);
        outcome
    })
}

/// Runs a step that counts its progress. Shows a bar on a terminal, and percent elsewhere. A signal that asks
/// this process to end cancels the step.
///
/// # Errors
/// As the step; or a signal cancelled it.
pub(crate) fn with_bar<T>(
    what: &'static str,
    step: impl FnOnce(&Progress) -> volt_vmm::Result<T>,
) -> Result<T, Failure> {
    let progress = &Progress::default();
    let cancel = || match progress.cancel() {
        true => Ok(()),
        false => Err(Failure::Server(format!("cannot cancel {what}: it is about to succeed"))),
    };
    let look = || (progress.done(), progress.total());
    watching(what, cancel, look, || {
        let outcome = step(progress).map_err(Failure::from)?;
        // A step that makes nothing does not commit itself.
        progress.commit()?;
        Ok(outcome)
    })
}

/// As [`with_bar`], with progress from `look`. After a signal, calls `cancel` until it succeeds. Another
/// thread calls both.
///
/// # Errors
/// As [`with_bar`]; or the host cannot start the thread.
pub(crate) fn watching<T>(
    what: &'static str,
    mut cancel: impl FnMut() -> Result<(), Failure> + Send,
    look: impl FnMut() -> (u64, u64) + Send,
    step: impl FnOnce() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut interrupts = Interrupts::block()?;
    let outcome = thread::scope(|scope| {
        let (done, ended) = channel::<()>();
        let heed = || interrupts.heed(&mut cancel);
        // Without the thread, no signal would end this process.
        let failed = |source| Failure::system("start a thread to receive signals", source);
        ticker().spawn_scoped(scope, move || tick(what, heed, look, ended)).map_err(failed)?;
        let outcome = step();
        drop(done);
        outcome
    });
    interrupts.outcome_of(outcome)
}

fn ticker() -> thread::Builder {
    named_thread("volt-progress")
}

/// Returns the percentage, or `None` if the total is unknown.
fn percent(done: u64, total: u64) -> Option<u64> {
    (u128::from(done) * 100).checked_div(total.into()).map(|percent| percent.min(100) as u64)
}

/// Draws `[########----------------]  33 %`.
fn bar(percent: u64) -> String {
    const WIDTH: usize = 24;
    let filled = percent as usize * WIDTH / 100;
    format!("[{}{}] {percent:>3} %", "#".repeat(filled), "-".repeat(WIDTH - filled))
}

fn tick(what: &str, mut heed: impl FnMut(), mut look: impl FnMut() -> (u64, u64), ended: Receiver<()>) {
    let started = Instant::now();
    let in_place = stderr().is_terminal();
    // The second in which a line was written.
    let mut shown = None;
    while ended.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
        heed();
        if started.elapsed() < QUIET {
            continue;
        }
        let (done, total) = look();
        let seconds = started.elapsed().as_secs();
        let percent = percent(done, total);
        if in_place {
            let bar = percent.map(|percent| bar(percent) + ", ").unwrap_or_default();
            let _ = write!(stderr(), "{CLEAR_LINE}{what}… {bar}{seconds} s");
        } else if shown.is_none() || seconds.is_multiple_of(10) && shown != Some(seconds) {
            let percent = percent.map(|percent| format!("{percent} %, ")).unwrap_or_default();
            let _ = writeln!(stderr(), "{what}… {percent}{seconds} s");
        } else {
            continue;
        }
        shown = Some(seconds);
    }
    if shown.is_some() && in_place {
        let _ = write!(stderr(), "{CLEAR_LINE}");
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn bar_is_as_full_as_its_percentage() {
        assert_eq!(super::percent(0, 0), None);
        assert_eq!(super::percent(1 << 60, 1 << 62), Some(25));
        assert_eq!(super::bar(25), "[######------------------]  25 %");
        assert_eq!(super::bar(0), format!("[{}]   0 %", "-".repeat(24)));
        assert_eq!(super::bar(100), format!("[{}] 100 %", "#".repeat(24)));
    }

    #[test]
    fn short_step_is_not_delayed() {
        let started = std::time::Instant::now();
        assert_eq!(super::during("testing", || 7), 7);
        assert!(started.elapsed() < std::time::Duration::from_millis(900));
    }
}
