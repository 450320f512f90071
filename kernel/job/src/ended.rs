//! The report of process 1 about the end of the main process.
//!
//! The console gets one line: `volt-init: ended ` and the report as text. The host gets one line of JSON on a
//! vsock connection to [`PORT`], if a program listens there.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Port of the host that takes the report.
pub const PORT: u32 = 49984;
/// Beginning of the report's line on the console.
pub const LINE: &str = "volt-init: ended ";

/// Status of a VM whose main process could not be prepared.
pub const NOT_PREPARED: u8 = 125;
/// Status of a program that may not be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// Status of a program that does not exist.
pub const NOT_FOUND: u8 = 127;

/// The end of the main process. As text: `exit 7`, `signal 9`, `signal 9, out of memory`.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Ended {
    /// The exit status. After a signal it is 128 and the signal's number, as shells have it.
    pub status: u8,
    /// The signal that ended the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<u8>,
    /// Whether the kernel ended a process of the main process's cgroup for want of memory.
    #[serde(default)]
    pub out_of_memory: bool,
    /// Why the process did not start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Ended {
    /// Reports an exit.
    #[must_use]
    pub fn exit(status: u8) -> Self {
        Self { status, signal: None, out_of_memory: false, error: None }
    }

    /// Reports a death by a signal.
    #[must_use]
    pub fn signal(number: u8) -> Self {
        Self { signal: Some(number), ..Self::exit(128_u8.saturating_add(number)) }
    }

    /// Reports that the process did not start.
    #[must_use]
    pub fn not_started(status: u8, error: String) -> Self {
        Self { error: Some(error), ..Self::exit(status) }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.signal {
            Some(number) => write!(f, "signal {number}")?,
            None => write!(f, "exit {}", self.status)?,
        }
        if self.out_of_memory { f.write_str(", out of memory") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_has_a_text_and_json() {
        let killed = Ended { out_of_memory: true, ..Ended::signal(9) };
        let cases = [
            (Ended::exit(7), "exit 7", r#"{"status":7,"out_of_memory":false}"#),
            (killed, "signal 9, out of memory", r#"{"status":137,"signal":9,"out_of_memory":true}"#),
            (
                Ended::not_started(NOT_FOUND, "no".to_owned()),
                "exit 127",
                r#"{"status":127,"out_of_memory":false,"error":"no"}"#,
            ),
        ];
        for (ended, text, json) in cases {
            assert_eq!(ended.to_string(), text);
            assert_eq!(serde_json::to_string(&ended).unwrap(), json);
            assert_eq!(serde_json::from_str::<Ended>(json).unwrap(), ended);
        }
    }
}
