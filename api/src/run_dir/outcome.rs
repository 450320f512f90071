//! The outcome of a VM: status and cause of its end.
//!
//! The file is open before the process confines itself and holds spaces, so that a full disk cannot keep the
//! outcome out. One write(2) replaces them all, which any confined thread may make. If two processes write,
//! the later one replaces the other's outcome whole.

use std::fs::File;
use std::io::{self, Seek, Write};

use serde::{Deserialize, Serialize};

use super::record::now;

/// Room for an outcome, in bytes. Each writer fills it.
pub(super) const ROOM: usize = 1024;
/// Longest message of an outcome, in bytes.
const LONGEST_MESSAGE: usize = 480;

/// The end of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EndOfVm {
    /// The exit status of its process, as a shell shows it.
    pub(crate) status: u8,
    pub(crate) cause: Cause,
    /// The cause for a person.
    pub(crate) message: String,
    /// The time, RFC 3339 in UTC. Absent if no process wrote the outcome.
    pub(crate) ended: Option<String>,
}

/// Causes of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Cause {
    Poweroff,
    /// The main process of its image ended.
    Exited,
    Reboot,
    /// The guest's kernel panicked.
    Panicked,
    TripleFault,
    /// A client of the API ended it.
    Stopped,
    /// A signal asked for the end.
    Signal,
    Crashed,
    /// Its process was killed.
    Killed,
    /// Its process failed.
    Failed,
}

impl EndOfVm {
    /// An end at this moment.
    pub(crate) fn now(status: u8, cause: Cause, message: impl Into<String>) -> Self {
        let mut message = message.into();
        let end = (0..=message.len().min(LONGEST_MESSAGE)).rfind(|end| message.is_char_boundary(*end));
        message.truncate(end.unwrap_or(0));
        Self { status, cause, message, ended: Some(now()) }
    }

    /// The end of a VM whose process left no outcome.
    pub(super) fn without_record() -> Self {
        let message = "its process was killed, or the host restarted; it left no outcome".to_owned();
        Self { status: 137, cause: Cause::Killed, message, ended: None }
    }

    /// Reads an outcome. Returns `None` if there is none yet.
    pub(super) fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text.trim()).ok()
    }
}

/// Reserves room in the file of an outcome.
///
/// # Errors
/// The file system refuses.
pub(super) fn reserve(mut file: &File) -> io::Result<()> {
    file.write_all(&[b' '; ROOM])?;
    file.rewind()
}

/// Writes the outcome into its reserved room.
///
/// # Errors
/// The file system refuses.
pub(crate) fn write(mut file: &File, end: &EndOfVm) -> io::Result<()> {
    let mut end = end.clone();
    let mut text = serde_json::to_vec(&end)?;
    // Escapes of control characters can make it longer than its room.
    while text.len() >= ROOM {
        let half = end.message.len() / 2;
        end.message.truncate((0..=half).rfind(|at| end.message.is_char_boundary(*at)).unwrap_or(0));
        text = serde_json::to_vec(&end)?;
    }
    text.resize(ROOM - 1, b' ');
    text.push(b'\n');
    file.write_all(&text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rest::testing::Dir;

    #[test]
    fn outcome_fills_its_reserved_room() {
        let dir = Dir::new();
        let path = dir.path("outcome");
        let file = File::create(&path).unwrap();
        reserve(&file).unwrap();
        let read = || std::fs::read_to_string(&path).unwrap();
        assert_eq!((EndOfVm::parse(&read()), read().len()), (None, ROOM));
        let end = EndOfVm::now(3, Cause::Reboot, "é".repeat(1000));
        assert_eq!(end.message.len(), LONGEST_MESSAGE);
        write(&file, &end).unwrap();
        assert_eq!((EndOfVm::parse(&read()), read().len()), (Some(end), ROOM));
        // Another process, which opened the file by itself, records a shorter one.
        let short = EndOfVm::now(137, Cause::Killed, "k");
        write(&File::options().write(true).open(&path).unwrap(), &short).unwrap();
        assert_eq!((EndOfVm::parse(&read()), read().len()), (Some(short), ROOM));
    }

    #[test]
    fn message_of_control_characters_is_cut_to_the_room() {
        let dir = Dir::new();
        let path = dir.path("outcome");
        let end = EndOfVm::now(1, Cause::Failed, "\x01".repeat(1000));
        write(&File::create(&path).unwrap(), &end).unwrap();
        let found = EndOfVm::parse(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert!(end.message.starts_with(&found.message) && !found.message.is_empty(), "{found:?}");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), ROOM as u64);
    }
}
