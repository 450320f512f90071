//! Says on standard error that a step is still going on, once it has taken a second.

use std::io::{IsTerminal, Write, stderr};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Runs `step`. From its second second on, standard error says `what` is going on: rewritten in place on a terminal,
/// elsewhere a line at once and then one every ten seconds.
pub(crate) fn during<T>(what: &'static str, step: impl FnOnce() -> T) -> T {
    let (done, ended) = channel::<()>();
    // Progress is a courtesy: without the thread the step runs all the same.
    let ticker = thread::Builder::new().name("volt-progress".into()).spawn(move || tick(what, &ended));
    let outcome = step();
    drop(done);
    if let Ok(ticker) = ticker {
        let _ = ticker.join();
    }
    outcome
}

fn tick(what: &str, ended: &Receiver<()>) {
    let started = Instant::now();
    let in_place = stderr().is_terminal();
    let mut shown = false;
    while ended.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
        let seconds = started.elapsed().as_secs();
        if in_place {
            let _ = write!(stderr(), "\r{what}… {seconds} s\x1b[K");
        } else if !shown || seconds.is_multiple_of(10) {
            let _ = writeln!(stderr(), "{what}… {seconds} s");
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
    fn a_short_step_is_not_delayed() {
        let started = std::time::Instant::now();
        assert_eq!(super::during("testing", || 7), 7);
        assert!(started.elapsed() < std::time::Duration::from_millis(900));
    }
}
