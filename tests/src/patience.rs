//! Limits of waits. They are generous: a test that fails late is better than one that fails on a busy host.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// The longest limit of a test that the environment lengthens.
const LONGEST: Duration = Duration::from_secs(3600);

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

/// Returns the limit of a test that has none of its own. It exceeds [`patience`], so that a failed wait ends
/// first and names itself. It grows with the work that the environment asks for, up to an hour, because one
/// test must not take the time of a lab.
#[must_use]
pub fn limit() -> Duration {
    let usual = Duration::from_secs(if in_lab() { 600 } else { 360 }).max(2 * patience());
    let number = |variable| std::env::var(variable).ok()?.rsplit(',').next()?.parse::<u32>().ok();
    let rounds = ["VOLT_GENERATIONS", "VOLT_POWER_CUTS"].into_iter().filter_map(number).max();
    let forks = number("VOLT_FORKS").unwrap_or(0);
    if std::env::var("VOLT_FAULTS").is_ok_and(|faults| faults == "all") {
        return LONGEST;
    }
    let work = usual * rounds.unwrap_or(0).div_ceil(10).max(1) + forks * Duration::from_millis(250);
    work.min(LONGEST).max(usual)
}

/// Calls `act`, which may block. After [`patience`] the test fails with `what`, and the runner abandons its
/// thread, because a blocked thread cannot be ended from outside. On another thread than the test's, `what`
/// is only reported: the limit of the test ends the wait.
pub fn limited<T>(what: &str, act: impl FnOnce() -> T) -> T {
    let (done, ended) = std::sync::mpsc::channel::<()>();
    let watch = volt_test_runner::watch();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if ended.recv_timeout(patience()) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                let message = format!("waited {:?} in vain until {what}", patience());
                eprintln!("{message}");
                watch.abandon(message);
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
