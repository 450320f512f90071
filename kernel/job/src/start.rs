//! The start of the main process by the host, over the agent: `POST /volt/main`.
//!
//! The answer is a [`Started`], or status 422 with an [`Ended`](crate::Ended) if the process did not start. The
//! VM then ends with that report. A VM with a main process answers with status 409.

use serde::{Deserialize, Serialize};

use crate::job::Process;

/// Path of the call.
pub const PATH: &str = "/volt/main";
/// Tag of the main process in the agent's table.
pub const TAG: &str = "main";
/// Longest body in bytes.
pub const LONGEST: usize = 128 << 10;

/// The main process to start. Its output goes to the agent, and `console` has no effect. An init replaces
/// process 1, with the console as output, and nobody can follow it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct StartMain {
    /// The process.
    #[serde(flatten)]
    pub process: Process,
    /// The size of its terminal, else 80 columns and 24 rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    /// Whether its starter does not follow it. The end of another one waits a moment for its first follower.
    #[serde(default)]
    pub detached: bool,
}

/// The size of a terminal.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Size {
    /// Columns.
    pub cols: u16,
    /// Rows.
    pub rows: u16,
}

impl Default for Size {
    fn default() -> Self {
        Self { cols: 80, rows: 24 }
    }
}

/// The main process runs.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Started {
    /// Its process id.
    pub pid: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_and_size_are_fields_of_one_object() {
        let text = r#"{"argv":["sh"],"terminal":true,"stdin":true,"size":{"cols":100,"rows":30}}"#;
        let process = Process { terminal: true, stdin: true, console: false, ..Process::new(["sh"]) };
        let start = StartMain { process, size: Some(Size { cols: 100, rows: 30 }), detached: false };
        assert_eq!(serde_json::from_str::<StartMain>(text).unwrap(), start);
        let written = serde_json::to_string(&start).unwrap();
        assert_eq!(serde_json::from_str::<StartMain>(&written).unwrap(), start);
    }

    #[test]
    fn unknown_field_is_named() {
        let error =
            serde_json::from_str::<StartMain>(r#"{"argv":["sh"],"entry":1}"#).unwrap_err().to_string();
        assert!(error.contains("unknown field `entry`"), "{error}");
    }
}
