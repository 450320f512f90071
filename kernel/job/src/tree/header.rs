//! Headers of records.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};

use serde::{Deserialize, Serialize};

use super::escaped::Escaped;

/// Longest header.
const LONGEST: usize = 1 << 20;
/// Most bytes of an entry's extended attributes. The header has up to three for each.
pub(super) const ATTRIBUTES: usize = 96 << 10;
/// Most extents of a file. A file with more has its last holes as zeros.
pub(super) const EXTENTS: usize = 16_384;
/// Longest path, as the kernel takes it.
pub(super) const PATH: usize = 4095;
/// Deepest path.
pub(super) const DEPTH: usize = 1000;

/// The kind of a record.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    Dir,
    File,
    Symlink,
    Fifo,
    /// Another name of an earlier file.
    Hardlink,
    /// Tells what the stream lacks.
    Warning,
    /// The last record of a stream whose source failed.
    Error,
    /// The last record of a whole stream.
    #[default]
    End,
}

/// The header of a record.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) path: Escaped,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Seconds and nanoseconds.
    pub(super) mtime: (i64, u32),
    pub(super) size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) target: Option<Escaped>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) xattrs: BTreeMap<Escaped, Escaped>,
    /// Offset and length of each part that is no hole.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) extents: Vec<(u64, u64)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) message: Option<String>,
}

/// Names the act and the path of an error.
pub(super) fn failed(act: &str, path: &[u8], error: impl Into<io::Error>) -> io::Error {
    let error = error.into();
    io::Error::new(error.kind(), format!("cannot {act} {}: {error}", Escaped(path.to_vec())))
}

/// The error of a stream that breaks its own rules.
pub(super) fn malformed(why: impl std::fmt::Display) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("the stream of the tree {why}"))
}

/// The error of a read: a stream that ends is cut.
pub(super) fn unread(error: io::Error, place: &str) -> io::Error {
    match error.kind() {
        ErrorKind::UnexpectedEof => io::Error::new(
            ErrorKind::UnexpectedEof,
            format!("the stream of the tree ends early, {place}: its sender broke off"),
        ),
        kind => io::Error::new(kind, format!("cannot read the stream of the tree: {error}")),
    }
}

impl Header {
    /// A record that only tells something.
    pub(super) fn message(kind: Kind, message: String) -> Self {
        Self { kind, message: Some(message), ..Self::default() }
    }

    /// Writes the header. Its content follows it.
    pub(super) fn write(&self, output: &mut dyn Write) -> io::Result<()> {
        let text = serde_json::to_vec(self)?;
        if text.len() > LONGEST {
            return Err(failed("pack", &self.path.0, io::Error::other("its header is longer than 1 MiB")));
        }
        output.write_all(&(text.len() as u32).to_le_bytes())?;
        output.write_all(&text)
    }

    /// Reads the next header, and checks all that needs no file system.
    pub(super) fn read(input: &mut dyn Read) -> io::Result<Self> {
        let mut length = [0; 4];
        let place = "before its last record";
        input.read_exact(&mut length).map_err(|error| unread(error, place))?;
        let length = u32::from_le_bytes(length) as usize;
        if length > LONGEST {
            return Err(malformed(format_args!("has a header of {length} bytes, more than {LONGEST}")));
        }
        let mut text = vec![0; length];
        input.read_exact(&mut text).map_err(|error| unread(error, place))?;
        let header: Self = serde_json::from_slice(&text)
            .map_err(|error| malformed(format_args!("has a header that is not understood: {error}")))?;
        header.check().map_err(|why| malformed(format_args!("has a bad entry {}: {why}", header.path)))?;
        Ok(header)
    }

    fn check(&self) -> Result<(), String> {
        if matches!(self.kind, Kind::End | Kind::Error | Kind::Warning) {
            return Ok(());
        }
        check_path(&self.path)?;
        if self.kind == Kind::Hardlink {
            check_path(self.target.as_ref().ok_or("a hard link has no target")?)?;
        }
        if self.kind != Kind::File && !self.extents.is_empty() {
            return Err("its kind has no content".into());
        }
        if self.uid == u32::MAX || self.gid == u32::MAX || self.mtime.1 > 999_999_999 {
            return Err("its owner or its time is out of range".into());
        }
        let attributes = self.xattrs.iter().map(|(name, value)| name.0.len() + value.0.len()).sum::<usize>();
        if attributes > ATTRIBUTES || self.xattrs.keys().any(|name| name.0.contains(&0)) {
            return Err("its extended attributes are too long, or have a name with a zero byte".into());
        }
        let mut end = 0;
        for &(offset, length) in &self.extents {
            let next = offset.checked_add(length).filter(|&next| next <= self.size);
            match next {
                Some(next) if offset >= end && length > 0 => end = next,
                _ => return Err(format!("its extents do not ascend within its {} bytes", self.size)),
            }
        }
        if self.size > i64::MAX as u64 { Err("its size is out of range".into()) } else { Ok(()) }
    }
}

fn check_path(Escaped(path): &Escaped) -> Result<(), String> {
    if path.len() > PATH || path.contains(&0) {
        return Err(format!("a path has more than {PATH} bytes, or a zero byte"));
    }
    let components = || path.split(|&byte| byte == b'/');
    if components().count() > DEPTH {
        return Err(format!("a path is deeper than {DEPTH} directories"));
    }
    let is_wrong = |name: &[u8]| matches!(name, b"" | b"." | b"..");
    if components().any(is_wrong) {
        return Err("a path is absolute, or has an empty component, . or ..".into());
    }
    Ok(())
}
