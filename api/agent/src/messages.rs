//! Messages of the agent's service `process.Process`, as JSON has them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use volt_job::start::{Size, TAG};

/// The command that a request is about.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Selected {
    /// Its process id.
    Pid(u32),
    /// Its name.
    Tag(&'static str),
}

impl Selected {
    /// The main process.
    pub const MAIN: Self = Self::Tag(TAG);
}

/// A command to start.
#[derive(Debug, Serialize)]
pub(crate) struct Start<'a> {
    pub(crate) process: Config<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pty: Option<Pty>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tag: Option<&'a str>,
    pub(crate) stdin: bool,
}

#[derive(Debug, Serialize)]
pub(crate) struct Config<'a> {
    pub(crate) cmd: &'a str,
    pub(crate) args: &'a [String],
    pub(crate) envs: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cwd: Option<&'a str>,
}

/// The terminal of a command.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Pty {
    pub(crate) size: Size,
}

/// A request about a command.
#[derive(Debug, Serialize)]
pub(crate) struct About<'a> {
    pub(crate) process: &'a Selected,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pty: Option<Pty>,
}

/// A message of a stream of input.
#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Typed<'a> {
    Start { process: &'a Selected },
    Data { input: Bytes },
}

/// Input, in base64.
#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Bytes {
    Stdin(String),
    Pty(String),
}

/// A message of a stream of output.
#[derive(Debug, Deserialize)]
pub(crate) struct Output {
    #[serde(default)]
    pub(crate) event: Event,
}

/// An event of a command.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Event {
    pub(crate) start: Option<Started>,
    pub(crate) data: Option<Data>,
    pub(crate) end: Option<Ended>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Started {
    pub(crate) pid: u32,
}

/// The commands that run.
#[derive(Debug, Deserialize)]
pub(crate) struct Running {
    #[serde(default)]
    pub(crate) processes: Vec<Started>,
}

/// Output, in base64.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Data {
    pub(crate) stdout: Option<String>,
    pub(crate) stderr: Option<String>,
    pub(crate) pty: Option<String>,
}

/// The end of a command.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Ended {
    pub(crate) exit_code: i32,
    pub(crate) exited: bool,
    pub(crate) status: String,
}

/// The end of a stream.
#[derive(Debug, Deserialize)]
pub(crate) struct Last {
    #[serde(default)]
    pub(crate) error: Option<CallError>,
    /// Fields of the head that come at the end.
    #[serde(default)]
    pub(crate) metadata: BTreeMap<String, Vec<String>>,
}

/// A refused call.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct CallError {
    /// The kind, such as `not_found`.
    pub code: String,
    /// The cause for a person.
    pub message: String,
}
