//! A part of a file as a stream.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Reads a part of a file, whatever else reads it.
#[derive(Debug)]
pub(super) struct Section {
    file: Arc<File>,
    at: u64,
    end: u64,
}

impl Section {
    /// The offset in the file from which it reads next.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    pub(super) fn new(file: Arc<File>, at: u64, len: u64) -> Self {
        Self { file, at, end: at.saturating_add(len) }
    }
}

impl Read for Section {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.end - self.at).map_or(buffer.len(), |rest| rest.min(buffer.len()));
        let count = self.file.read_at(&mut buffer[..most], self.at)?;
        if count == 0 && most > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.at += count as u64;
        Ok(count)
    }
}
