//! Limits of waits. They are generous: a test that fails late is better than one that fails on a busy host.

use std::io::Write;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Returns the limit of a wait. `VOLT_PATIENCE` overrides it in seconds. On a busy host a snapshot has waited
/// a minute for kernel threads that end SRCU's grace periods.
#[must_use]
pub fn patience() -> Duration {
    let given = std::env::var("VOLT_PATIENCE").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(given.unwrap_or(if in_lab() { 240 } else { 180 }))
}

/// Tells whether the processor is emulated.
#[must_use]
pub fn in_lab() -> bool {
    std::env::var_os("VOLT_LAB").is_some()
}

/// Calls `act`, which may block. After [`patience`] the process reports `what` and aborts, because a blocked
/// thread cannot be ended from outside.
pub fn limited<T>(what: &str, act: impl FnOnce() -> T) -> T {
    let (done, ended) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if ended.recv_timeout(patience()) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                // `eprintln!` would keep the text for the end of the test, which does not come.
                let _ = writeln!(std::io::stderr(), "waited {:?} in vain until {what}", patience());
                std::process::abort();
            }
        });
        let result = act();
        drop(done);
        result
    })
}

/// Runs a program of the host, which must end within [`patience`].
///
/// # Panics
/// The program cannot be started.
pub fn output(command: &mut Command) -> Output {
    let what = format!("{} ends", command.get_program().display());
    let done = limited(&what, || command.output());
    done.unwrap_or_else(|error| panic!("run {command:?}: {error}"))
}

/// Waits until `holds`.
///
/// # Panics
/// The condition does not hold within [`patience`].
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < patience(), "waited {:?} in vain until {what}", start.elapsed());
        std::thread::sleep(Duration::from_millis(5));
    }
}
