//! The content of a layer's files, in blocks.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use super::split::Place;
use crate::erofs::BLOCK;

const CHUNK: usize = 256 << 10;

pub(super) struct Blob<'a> {
    file: &'a File,
    /// The next free block.
    next: u32,
    chunk: Vec<u8>,
    place: Place,
}

impl<'a> Blob<'a> {
    pub(super) fn new(file: &'a File, place: Place) -> Self {
        Self { file, next: 1, chunk: vec![0; CHUNK], place }
    }

    /// Tells whether blocks for so many bytes are left.
    pub(super) fn reserve(&self, size: u64) -> Option<u32> {
        u32::try_from(size.div_ceil(BLOCK as u64)).ok().and_then(|blocks| self.next.checked_add(blocks))
    }

    /// Stores the parts of a file of `size` bytes. Returns its first block.
    pub(super) fn store(&mut self, size: u64, parts: &[(u64, u64)], from: &mut impl Read) -> io::Result<u32> {
        let first = self.next;
        let start = u64::from(first) * BLOCK as u64;
        for (offset, len) in parts {
            let (mut at, end) = (start + offset, start + offset + len);
            self.place.set(Some(at));
            while at < end {
                let most = usize::try_from(end - at).map_or(CHUNK, |rest| rest.min(CHUNK));
                let count = match from.read(&mut self.chunk[..most]) {
                    Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    count => count?,
                };
                // The file reads as zeros where nothing is written.
                if self.chunk[..count].iter().any(|byte| *byte != 0) {
                    self.file.write_all_at(&self.chunk[..count], at)?;
                }
                at += count as u64;
            }
            self.place.set(None);
        }
        self.next = self.reserve(size).ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(first)
    }

    /// Extends the file to whole blocks. Returns their number.
    pub(super) fn finish(self) -> io::Result<u32> {
        self.file.set_len(u64::from(self.next) * BLOCK as u64)?;
        Ok(self.next)
    }
}
