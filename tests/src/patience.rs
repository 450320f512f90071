//! How long to wait: generously, for a test that fails late is better than one that fails on a busy machine.

use std::io::Write;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// The longest that anything may take which does happen; `VOLT_PATIENCE` overrides it, in seconds. A kernel's
/// own threads may wait for a processor that others keep busy: those that end SRCU's grace periods have been
/// seen to, for a minute, and with them a snapshot.
#[must_use]
pub fn patience() -> Duration {
    let given = std::env::var("VOLT_PATIENCE").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(given.unwrap_or(if in_lab() { 240 } else { 180 }))
}

/// Whether the processor is emulated.
#[must_use]
pub fn in_lab() -> bool {
    std::env::var_os("VOLT_LAB").is_some()
}

/// Does something that blocks. Where it takes longer than [`patience`], this process says what it waited for
/// and ends: no thread can be ended from outside.
pub fn limited<T>(what: &str, act: impl FnOnce() -> T) -> T {
    let (done, ended) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if ended.recv_timeout(patience()) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                // Not by `eprintln!`: libtest keeps that for the end of the test, which does not come.
                let _ = writeln!(std::io::stderr(), "waited {:?} in vain until {what}", patience());
                std::process::abort();
            }
        });
        let result = act();
        drop(done);
        result
    })
}

/// What a program of the host comes to, which ends within the patience.
///
/// # Panics
/// It cannot be started.
pub fn output(command: &mut Command) -> Output {
    let what = format!("{} ends", command.get_program().display());
    let done = limited(&what, || command.output());
    done.unwrap_or_else(|error| panic!("run {command:?}: {error}"))
}

/// Waits until `holds`.
///
/// # Panics
/// It does not within [`patience`].
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < patience(), "waited {:?} in vain until {what}", start.elapsed());
        std::thread::sleep(Duration::from_millis(5));
    }
}
