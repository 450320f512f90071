//! Files of a guest: their content, and their directories.

use std::io::{ErrorKind, Read};
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use crate::Agent;
use crate::error::{Error, Result};
use crate::http::{Answer, Request};
use crate::text::shown;
use crate::timed::Timed;
use crate::trees::encoded;

/// Longest wait for the next bytes of a file, for the answer to one that was sent, and for work on a
/// directory.
const FILE: Duration = Duration::from_secs(60);
/// Most bytes of a file that is read as a whole.
const LONGEST_FILE: u64 = 1 << 30;
const TOO_LONG: &str = "it has more than 1 GiB; copy it by volt-vmm cp";
/// Most bytes of a list of entries.
const LONGEST_LIST: u64 = 256 << 20;

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A device, socket or FIFO, or a symlink that leads nowhere.
    Other,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FileEntry {
    /// The last part of its path.
    pub name: String,
    /// Its kind; a symlink has that of its target.
    #[serde(rename = "type", deserialize_with = "kind")]
    pub kind: FileKind,
    /// Its path.
    pub path: String,
    /// Its length in bytes.
    #[serde(default, deserialize_with = "number")]
    pub size: u64,
    /// Its permission bits.
    #[serde(default)]
    pub mode: u32,
    /// The path that a symlink leads to.
    #[serde(default)]
    pub symlink_target: Option<String>,
}

fn kind<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<FileKind, D::Error> {
    Ok(match &*String::deserialize(deserializer)? {
        "FILE_TYPE_FILE" => FileKind::File,
        "FILE_TYPE_DIRECTORY" => FileKind::Directory,
        _ => FileKind::Other,
    })
}

/// A number of 64 bits, which JSON of protobuf has as text.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<u64, D::Error> {
    let number = match Value::deserialize(deserializer)? {
        Value::String(text) => text.parse().ok(),
        value => value.as_u64(),
    };
    number.ok_or_else(|| D::Error::custom("it is no length"))
}

#[derive(Debug, Deserialize)]
struct Stat {
    entry: FileEntry,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct List {
    entries: Vec<FileEntry>,
}

impl Agent {
    /// Looks at a path. Returns `None` if it does not exist.
    ///
    /// # Errors
    /// The agent does not answer, or may not look.
    pub fn look_at(&self, path: &str) -> Result<Option<FileEntry>> {
        let answer = self.of_path("Stat", path)?;
        if answer.status != 200 {
            let refusal = answer.refusal();
            return if refusal.code() == Some("not_found") { Ok(None) } else { Err(refusal) };
        }
        let stat: Stat = serde_json::from_slice(&answer.body()?)
            .map_err(|error| Error::Foreign(format!("sent what is no file's state: {error}")))?;
        Ok(Some(stat.entry))
    }

    /// Lists the entries of a directory, in the order of their names.
    ///
    /// # Errors
    /// It is no directory, or the agent does not answer.
    pub fn list_directory(&self, path: &str) -> Result<Vec<FileEntry>> {
        let answer = accepted(self.of_path("ListDir", path)?)?;
        let list = serde_json::from_slice(&answer.body_up_to(LONGEST_LIST)?);
        let List { mut entries } =
            list.map_err(|error| Error::Foreign(format!("sent what is no list of files: {error}")))?;
        // The caller may join a name to a path of the host.
        if let Some(entry) = entries.iter().find(|entry| !is_name(&entry.name)) {
            return Err(Error::Foreign(format!("lists what is no name: {}", shown(&entry.name))));
        }
        entries.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(entries)
    }

    /// Makes a directory, and those above it.
    ///
    /// # Errors
    /// It exists (`already_exists`), the guest refuses, or the agent does not answer.
    pub fn make_directory(&self, path: &str) -> Result<()> {
        accepted(self.of_path("MakeDir", path)?).map(drop)
    }

    /// Removes a file, or a directory with all below it. One that is missing is no error.
    ///
    /// # Errors
    /// The path is empty or `/`, the guest refuses, or the agent does not answer.
    pub fn remove(&self, path: &str) -> Result<()> {
        accepted(self.of_path("Remove", path)?).map(drop)
    }

    /// Reads a file of at most 1 GiB.
    ///
    /// # Errors
    /// It is missing (`not_found`), no regular file or longer, the agent does not answer, or the guest sends
    /// no byte for 60 s.
    pub fn read_file(&self, path: &str) -> Result<Vec<u8>> {
        let target = format!("/files?path={}", encoded(path));
        let answer = accepted(self.call(&Request::new("GET", &target))?)?;
        let length = answer.field("Content-Length").and_then(|length| length.parse::<u64>().ok());
        if length.is_some_and(|length| length > LONGEST_FILE) {
            return Err(Error::refused("resource_exhausted", TOO_LONG));
        }
        let Answer { unread: mut content, stream, .. } = answer;
        let stream = stream.into_inner();
        stream.set_read_timeout(Some(FILE))?;
        // A byte more tells that the guest sends more than it may.
        let most = (length.unwrap_or(LONGEST_FILE) + 1).saturating_sub(content.len() as u64);
        stream.take(most).read_to_end(&mut content)?;
        match (length, content.len() as u64) {
            (Some(length), read) if read < length => Err(Error::Unanswered(ErrorKind::UnexpectedEof.into())),
            (Some(length), read) if read > length => {
                Err(Error::Foreign("sends more of a file than its length".to_owned()))
            }
            (None, read) if read > LONGEST_FILE => Err(Error::refused("resource_exhausted", TOO_LONG)),
            _ => Ok(content),
        }
    }

    /// Writes a file, with missing directories above it. One that exists gets the new content, and keeps its
    /// owner and mode.
    ///
    /// # Errors
    /// The guest refuses, such as without room, or the agent does not answer.
    pub fn write_file(&self, path: &str, content: &[u8]) -> Result<()> {
        let target = format!("/files?path={}", encoded(path));
        let request = Request::new("POST", &target).body("application/octet-stream", content.to_vec());
        let mut stream = self.connect()?;
        stream.set_write_timeout(Some(FILE))?;
        // A refusal may come before the last byte has left, and explains a broken connection better.
        let sent = request.write(&mut stream);
        let answer = Answer::read(Timed::new(stream, Some(FILE)));
        match (answer, sent) {
            (Ok(answer), _) if answer.status != 200 => Err(answer.refusal()),
            (Ok(_), Ok(())) => Ok(()),
            (_, Err(error)) | (Err(error), _) => Err(error.into()),
        }
    }

    fn of_path(&self, method: &str, path: &str) -> Result<Answer> {
        let target = format!("/filesystem.Filesystem/{method}");
        let request = Request::new("POST", &target).json(&json!({ "path": path }));
        self.ask_within(FILE, &request).map_err(Error::from)
    }
}

/// Whether it is the name of an entry of a directory.
fn is_name(text: &str) -> bool {
    !matches!(text, "" | "." | "..") && !text.contains(['/', '\0'])
}

/// An answer that is no refusal.
fn accepted(answer: Answer) -> Result<Answer> {
    if answer.status == 200 { Ok(answer) } else { Err(answer.refusal()) }
}
