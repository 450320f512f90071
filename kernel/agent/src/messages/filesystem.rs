//! Messages of `filesystem.Filesystem`.

use std::collections::BTreeMap;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::json;
use crate::time;

/// A point in time, one of protobuf's well-known types. Its JSON form is RFC 3339.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Timestamp {
    /// Seconds since 1970.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// Nanoseconds of the second.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&time::to_text(self.seconds, self.nanos))
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let (seconds, nanos) = time::from_text(&text).ok_or_else(|| D::Error::custom("no RFC 3339 time"))?;
        Ok(Self { seconds, nanos })
    }
}

/// Renames an entry.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MoveRequest {
    /// The old path.
    #[prost(string, tag = "1")]
    pub source: String,
    /// The new path.
    #[prost(string, tag = "2")]
    pub destination: String,
}

/// The request of Stat, MakeDir and Remove.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PathRequest {
    /// The path.
    #[prost(string, tag = "1")]
    pub path: String,
}

/// The response of Stat, MakeDir and Move.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EntryResponse {
    /// The entry.
    #[prost(message, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entry: Option<EntryInfo>,
}

/// A message without fields.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
pub struct Empty {}

/// A file or a directory.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EntryInfo {
    /// The last part of the path.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The type; a symlink's is its target's.
    #[prost(int32, tag = "2")]
    #[serde(with = "json::file_type")]
    pub r#type: i32,
    /// The path.
    #[prost(string, tag = "3")]
    pub path: String,
    /// Bytes.
    #[prost(int64, tag = "4")]
    #[serde(serialize_with = "json::int64::serialize")]
    pub size: i64,
    /// Permission bits.
    #[prost(uint32, tag = "5")]
    pub mode: u32,
    /// Type and permission bits as ls writes them.
    #[prost(string, tag = "6")]
    pub permissions: String,
    /// The owner's name.
    #[prost(string, tag = "7")]
    pub owner: String,
    /// The group's name.
    #[prost(string, tag = "8")]
    pub group: String,
    /// Time of the last change of the content.
    #[prost(message, optional, tag = "9")]
    #[serde(skip_serializing_if = "Option::is_none", alias = "modified_time")]
    pub modified_time: Option<Timestamp>,
    /// The path that a symlink leads to.
    #[prost(string, optional, tag = "10")]
    #[serde(skip_serializing_if = "Option::is_none", alias = "symlink_target")]
    pub symlink_target: Option<String>,
    /// Metadata from extended attributes.
    #[prost(btree_map = "string, string", tag = "11")]
    pub metadata: BTreeMap<String, String>,
    /// True for a symlink.
    #[prost(bool, tag = "12")]
    #[serde(alias = "is_symlink")]
    pub is_symlink: bool,
}

/// Asks for the entries of a directory.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ListDirRequest {
    /// The directory.
    #[prost(string, tag = "1")]
    pub path: String,
    /// Levels to descend; 0 means 1.
    #[prost(uint32, tag = "2")]
    pub depth: u32,
}

/// The entries of a directory.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ListDirResponse {
    /// The entries.
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<EntryInfo>,
}

/// The request of WatchDir and CreateWatcher.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct WatchRequest {
    /// The directory.
    #[prost(string, tag = "1")]
    pub path: String,
    /// Watches directories below too.
    #[prost(bool, tag = "2")]
    pub recursive: bool,
    /// Adds the entry to events.
    #[prost(bool, tag = "3")]
    #[serde(alias = "include_entry")]
    pub include_entry: bool,
    /// Permits file systems whose server changes files unseen.
    #[prost(bool, tag = "4")]
    #[serde(alias = "allow_network_mounts")]
    pub allow_network_mounts: bool,
}

/// A change.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FilesystemEvent {
    /// The path below the watched directory.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The kind of change.
    #[prost(int32, tag = "2")]
    #[serde(with = "json::event_type")]
    pub r#type: i32,
    /// The entry, if it was asked for and exists.
    #[prost(message, optional, tag = "3")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entry: Option<EntryInfo>,
}

/// An element of the stream of WatchDir. Exactly one field is set.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct WatchResponse {
    /// The watch begins.
    #[prost(message, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<Empty>,
    /// A change.
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filesystem: Option<FilesystemEvent>,
    /// Nothing happened for a while.
    #[prost(message, optional, tag = "3")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keepalive: Option<Empty>,
}

/// The request of GetWatcherEvents and RemoveWatcher.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct WatcherRequest {
    /// The watcher.
    #[prost(string, tag = "1")]
    #[serde(alias = "watcher_id")]
    pub watcher_id: String,
}

/// A new watcher.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CreateWatcherResponse {
    /// Its name.
    #[prost(string, tag = "1")]
    #[serde(alias = "watcher_id")]
    pub watcher_id: String,
}

/// Changes since the last call.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GetWatcherEventsResponse {
    /// The changes.
    #[prost(message, repeated, tag = "1")]
    pub events: Vec<FilesystemEvent>,
}
