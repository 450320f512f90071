//! `sleep`, `deadline` and `periods`: timers that must end on time even if a snapshot interrupts them.

use std::time::Duration;

use crate::console;
use crate::outcome::Outcome;
use crate::system;

/// Starts a thread for `work`.
pub(crate) fn in_background(work: impl FnOnce() + Send + 'static) -> Outcome {
    let thread = std::thread::Builder::new().spawn(work);
    thread.map(drop).map_err(|error| format!("cannot start a thread: {error}"))
}

/// `sleep MS`: starts a relative nanosleep, and prints `slept MS took T`, in milliseconds, at its end.
pub(crate) fn sleep(ms: u64) -> Outcome {
    in_background(move || {
        let start = monotonic();
        system::nanosleep(Duration::from_millis(ms));
        report("slept", ms, start);
    })
}

/// `periods MS`: arms a timerfd that expires each MS milliseconds, and prints `woken N expired E` at each
/// wait that it ends: N counts the waits from 1, and E the periods since the wait before.
pub(crate) fn periods(ms: u64) -> Outcome {
    let period = Duration::from_millis(ms);
    let timer = system::Timer::armed(monotonic() + period, period);
    let timer = timer.map_err(|error| format!("cannot arm a timer: {error}"))?;
    in_background(move || {
        for number in 1_u64.. {
            let expired = timer.wait();
            console::line(&format!("woken {number} expired {expired}"));
        }
    })
}

/// `deadline MS`: arms an absolute, monotonic timerfd, and prints `deadline MS took T` at its end.
pub(crate) fn deadline(ms: u64) -> Outcome {
    let start = monotonic();
    let timer = system::Timer::at(start + Duration::from_millis(ms));
    let timer = timer.map_err(|error| format!("cannot arm a timer: {error}"))?;
    in_background(move || {
        timer.wait();
        report("deadline", ms, start);
    })
}

pub(crate) fn monotonic() -> Duration {
    Duration::from_nanos(system::clock_ns(libc::CLOCK_MONOTONIC))
}

fn report(name: &str, ms: u64, start: Duration) {
    let took = monotonic() - start;
    console::line(&format!("{name} {ms} took {}", took.as_millis()));
}
