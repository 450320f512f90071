//! Messages on standard error.

use std::io::{IsTerminal, Write, stderr};

pub(crate) use volt_agent_client::harmless;

/// Goes to the beginning of a terminal's line and clears it.
pub(crate) const CLEAR_LINE: &str = "\r\x1b[K";

/// Writes a line. Nothing happens if standard error is closed, such as that of a terminal that has gone:
/// `eprintln!` would panic.
pub(crate) fn say(line: impl AsRef<str>) {
    // One write: lines of several processes may share the file.
    let _ = stderr().write_all(format!("{}\n", line.as_ref()).as_bytes());
}

/// As [`say`], in place of a line of progress on a terminal.
pub(crate) fn say_over_progress(line: impl AsRef<str>) {
    let clear = if stderr().is_terminal() { CLEAR_LINE } else { "" };
    say(format!("{clear}{}", line.as_ref()));
}
