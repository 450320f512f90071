//! Shows the progress of a step on standard error once it has taken a second.

use std::io::{IsTerminal, Write, stderr};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use volt_vmm::Progress;

/// Runs `step`. After one second it prints `what` and the elapsed time. A terminal gets one line that is
/// rewritten; anything else gets a line at once and then every ten seconds.
pub(crate) fn during<T>(what: &'static str, step: impl FnOnce() -> T) -> T {
    with_bar(what, |_| step())
}

/// Runs a step that counts its progress. Shows a bar on a terminal, and percent elsewhere.
pub(crate) fn with_bar<T>(what: &'static str, step: impl FnOnce(&Progress) -> T) -> T {
    let progress = &Progress::default();
    thread::scope(|scope| {
        let (done, ended) = channel::<()>();
        let ticker = thread::Builder::new().name("volt-progress".into());
        // The step runs without progress if the host cannot start the thread.
        let _ = ticker.spawn_scoped(scope, move || tick(what, progress, ended));
        let outcome = step(progress);
        drop(done);
        outcome
    })
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

fn tick(what: &str, progress: &Progress, ended: Receiver<()>) {
    let started = Instant::now();
    let in_place = stderr().is_terminal();
    let mut shown = false;
    let mut wait = Duration::from_secs(1);
    while ended.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
        let seconds = started.elapsed().as_secs();
        let percent = percent(progress.done(), progress.total());
        if in_place {
            let bar = percent.map(|percent| bar(percent) + ", ").unwrap_or_default();
            let _ = write!(stderr(), "\r{what}… {bar}{seconds} s\x1b[K");
            if percent.is_some() {
                wait = Duration::from_millis(200);
            }
        } else if !shown || seconds.is_multiple_of(10) {
            let percent = percent.map(|percent| format!("{percent} %, ")).unwrap_or_default();
            let _ = writeln!(stderr(), "{what}… {percent}{seconds} s");
        }
        shown = true;
    }
    if shown && in_place {
        let _ = write!(stderr(), "\r\x1b[K");
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
