//! Stops and the foreground of a terminal, for a process that may have a keeper.

use std::io;
use std::os::unix::fs::FileExt;

use rustix::process::{Signal, getpid, kill_process};

use super::keeper::{KEEPERS_STAT, STOP_REQUESTS};

/// Stops this process, as SIGSTOP does, and its keeper if it has one. May return before the process stops.
///
/// # Errors
/// The kernel refuses.
pub fn stop() -> io::Result<()> {
    match STOP_REQUESTS.get() {
        Some(requests) => rustix::io::write(requests, &[0]).map(drop)?,
        None => kill_process(getpid(), Signal::STOP)?,
    }
    Ok(())
}

/// Whether the process is in the foreground of its terminal. It cannot tell that itself in a pid namespace:
/// its process group has no number there. Absent for a process without a keeper, which can.
#[must_use]
pub fn is_in_foreground() -> Option<bool> {
    let mut bytes = [0; 512];
    let len = KEEPERS_STAT.get()?.read_at(&mut bytes, 0).ok()?;
    is_foreground(str::from_utf8(&bytes[..len]).ok()?)
}

/// As [`is_in_foreground`], for the content of a process's `stat`. The second field, a name in parentheses,
/// may have any character. The fifth is the process group, and the eighth that of the terminal's foreground
/// (proc_pid_stat(5)).
fn is_foreground(stat: &str) -> Option<bool> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(5 - 3);
    let (own, foreground) = (fields.next()?, fields.nth(2)?);
    Some(own == foreground)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreground_is_read_from_the_fields_of_a_process() {
        let stat =
            |group: u32, foreground: u32| format!("7 (a) b) S 1 {group} 5 34816 {foreground} 4194304 1\n");
        assert_eq!(is_foreground(&stat(7, 7)), Some(true));
        assert_eq!(is_foreground(&stat(7, 9)), Some(false));
        assert_eq!(is_foreground("7 (a"), None);
        assert_eq!(is_in_foreground(), None, "this process has no keeper");
    }
}
