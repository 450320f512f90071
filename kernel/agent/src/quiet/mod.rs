//! Quiet guests: the workload stands still for a snapshot, and each restored VM becomes one of its own before
//! the workload goes on.
//!
//! All of it blocks, and is for a thread that may.

mod entropy;
pub mod file_systems;
mod freezer;
mod groups;
mod heap;
mod hooks;
mod identity;

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime, clock_settime};
use volt_job::quiet::{ENTROPY, FREEZE_MS, Frozen, Wake, Woken};

pub use freezer::{freeze, see_frozen, thaw};
pub use heap::collapse;

/// Directory of the programs that run before the workload is frozen.
const BEFORE: &str = "/etc/volt/pre-snapshot.d";
/// Directory of the programs that run in a restored VM before the workload is thawed.
const AFTER: &str = "/etc/volt/post-restore.d";

/// Runs the hooks if asked to, and freezes the workload.
///
/// # Errors
/// A hook fails, or a process does not freeze in time. The workload then runs.
pub fn quiesce(hooks: bool) -> Result<Frozen, String> {
    if hooks && let Some(problem) = hooks::run(BEFORE, groups::of_hooks).into_iter().next() {
        return Err(problem);
    }
    let frozen = freeze(Duration::from_millis(FREEZE_MS))?;
    collapse();
    Ok(frozen)
}

/// Makes a restored VM one of its own, before the workload is thawed. The answer names the parts that failed.
/// `upper` is as for [`file_systems::thaw`]: names are written to disks, which the snapshot may have frozen.
pub fn wake(wake: &Wake, upper: Option<BorrowedFd<'_>>) -> Woken {
    let mut problems = Vec::new();
    let mut note = |what: &str, done: Result<(), String>| {
        problems.extend(done.err().map(|error| format!("cannot {what}: {error}")));
    };
    note("thaw file systems", file_systems::thaw_if_frozen(upper));
    note("take entropy", bytes(&wake.entropy).and_then(|bytes| entropy::take(&bytes)));
    note("set the clock", set_clock(wake.now));
    if let Some(name) = &wake.hostname {
        note("set the host name", identity::set_hostname(name));
    }
    if let Some(id) = &wake.machine_id {
        note("set the machine id", identity::set_machine_id(id));
    }
    if wake.hooks {
        // The group of the other hooks is frozen.
        problems.extend(hooks::run(AFTER, || None));
    }
    Woken { problems, now: nanoseconds() }
}

/// Sets the clock ahead.
///
/// # Errors
/// The kernel refuses.
pub fn advance_clock(by: u64) -> Result<(), String> {
    set_clock(nanoseconds().saturating_add(by)).map_err(|error| format!("cannot set the clock: {error}"))
}

/// The clock, in nanoseconds since 1970.
fn nanoseconds() -> u64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Realtime);
    tv_sec.cast_unsigned() * 1_000_000_000 + tv_nsec.cast_unsigned()
}

/// Decodes the digits of entropy.
fn bytes(digits: &str) -> Result<[u8; ENTROPY], String> {
    let mut bytes = [0; ENTROPY];
    if digits.len() != 2 * ENTROPY || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(format!("entropy has {} hexadecimal digits", 2 * ENTROPY));
    }
    for (number, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * number..2 * number + 2], 16).unwrap_or_default();
    }
    Ok(bytes)
}

fn set_clock(nanoseconds: u64) -> Result<(), String> {
    let (seconds, rest) = (nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000);
    let now = Timespec { tv_sec: seconds.cast_signed(), tv_nsec: rest.cast_signed() };
    clock_settime(ClockId::Realtime, now).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entropy_has_its_length_and_hexadecimal_digits() {
        let digits = "0f".repeat(ENTROPY);
        assert_eq!(bytes(&digits), Ok([15; ENTROPY]));
        for wrong in ["", "0f", &digits[1..], &digits.replace('f', "g"), &"é".repeat(ENTROPY)] {
            bytes(wrong).unwrap_err();
        }
    }
}
