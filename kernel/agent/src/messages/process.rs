//! Messages of `process.Process`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::json;

/// A command.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ProcessConfig {
    /// The program.
    #[prost(string, tag = "1")]
    pub cmd: String,
    /// Its arguments.
    #[prost(string, repeated, tag = "2")]
    pub args: Vec<String>,
    /// Variables beside the default ones.
    #[prost(btree_map = "string, string", tag = "3")]
    pub envs: BTreeMap<String, String>,
    /// The working directory.
    #[prost(string, optional, tag = "4")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// The size of a terminal.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PtySize {
    /// Columns.
    #[prost(uint32, tag = "1")]
    pub cols: u32,
    /// Rows.
    #[prost(uint32, tag = "2")]
    pub rows: u32,
}

/// A terminal.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Pty {
    /// Its size.
    #[prost(message, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<PtySize>,
}

/// A message without fields.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
pub struct Empty {}

/// A running command.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ProcessInfo {
    /// The command.
    #[prost(message, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<ProcessConfig>,
    /// The process id.
    #[prost(uint32, tag = "2")]
    pub pid: u32,
    /// The name that its starter chose.
    #[prost(string, optional, tag = "3")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// All running commands.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ListResponse {
    /// The commands.
    #[prost(message, repeated, tag = "1")]
    pub processes: Vec<ProcessInfo>,
}

/// A command to start.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StartRequest {
    /// The command.
    #[prost(message, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessConfig>,
    /// Gives the command a terminal.
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pty: Option<Pty>,
    /// A name for selectors.
    #[prost(string, optional, tag = "3")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Keeps the standard input open; unset means true.
    #[prost(bool, optional, tag = "4")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin: Option<bool>,
}

/// A new size of a terminal.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct UpdateRequest {
    /// The command.
    #[prost(message, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessSelector>,
    /// The terminal.
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pty: Option<Pty>,
}

/// The first event of a stream.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StartEvent {
    /// The process id.
    #[prost(uint32, tag = "1")]
    pub pid: u32,
}

/// Output. Exactly one field is set.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DataEvent {
    /// From the standard output.
    #[prost(bytes = "vec", optional, tag = "1")]
    #[serde(with = "json::base64", skip_serializing_if = "Option::is_none")]
    pub stdout: Option<Vec<u8>>,
    /// From the standard error output.
    #[prost(bytes = "vec", optional, tag = "2")]
    #[serde(with = "json::base64", skip_serializing_if = "Option::is_none")]
    pub stderr: Option<Vec<u8>>,
    /// From the terminal.
    #[prost(bytes = "vec", optional, tag = "3")]
    #[serde(with = "json::base64", skip_serializing_if = "Option::is_none")]
    pub pty: Option<Vec<u8>>,
}

/// The last event of a command.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EndEvent {
    /// The exit code, or -1 after a signal.
    #[prost(sint32, tag = "1")]
    #[serde(alias = "exit_code")]
    pub exit_code: i32,
    /// False after a signal.
    #[prost(bool, tag = "2")]
    pub exited: bool,
    /// The cause as text.
    #[prost(string, tag = "3")]
    pub status: String,
    /// The cause, if it is no exit with code 0.
    #[prost(string, optional, tag = "4")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// An event of a command. Exactly one field is set.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ProcessEvent {
    /// The stream begins.
    #[prost(message, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<StartEvent>,
    /// The command wrote.
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<DataEvent>,
    /// The command ended.
    #[prost(message, optional, tag = "3")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<EndEvent>,
    /// Nothing happened for a while.
    #[prost(message, optional, tag = "4")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keepalive: Option<Empty>,
}

/// An element of the streams of Start and Connect.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EventResponse {
    /// The event.
    #[prost(message, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<ProcessEvent>,
}

/// Input. Exactly one field is set.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ProcessInput {
    /// For the standard input.
    #[prost(bytes = "vec", optional, tag = "1")]
    #[serde(with = "json::base64", skip_serializing_if = "Option::is_none")]
    pub stdin: Option<Vec<u8>>,
    /// For the terminal.
    #[prost(bytes = "vec", optional, tag = "2")]
    #[serde(with = "json::base64", skip_serializing_if = "Option::is_none")]
    pub pty: Option<Vec<u8>>,
}

/// Input for a command.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SendInputRequest {
    /// The command.
    #[prost(message, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessSelector>,
    /// The input.
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<ProcessInput>,
}

/// The first element of a stream of input.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct InputStart {
    /// The command.
    #[prost(message, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessSelector>,
}

/// A later element of a stream of input.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct InputData {
    /// The input.
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<ProcessInput>,
}

/// An element of a stream of input. Exactly one field is set.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StreamInputRequest {
    /// Chooses the command.
    #[prost(message, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<InputStart>,
    /// Carries input.
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<InputData>,
    /// Keeps the connection.
    #[prost(message, optional, tag = "3")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keepalive: Option<Empty>,
}

/// A signal for a command.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SendSignalRequest {
    /// The command.
    #[prost(message, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessSelector>,
    /// The signal's number.
    #[prost(int32, tag = "2")]
    #[serde(with = "json::signal")]
    pub signal: i32,
}

/// The request of Connect and CloseStdin.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SelectRequest {
    /// The command.
    #[prost(message, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessSelector>,
}

/// Chooses a command. Exactly one field is set.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ProcessSelector {
    /// By process id.
    #[prost(uint32, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// By tag.
    #[prost(string, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}
