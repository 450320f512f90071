//! The files of a payload: reads headers into buffers, and copies the rest straight into guest memory.
//!
//! All reads are positioned (`pread`): other VMs and processes may share the descriptor, and with it the file
//! offset.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt};

use vm_memory::bitmap::BitmapSlice;
use vm_memory::{GuestAddress, GuestMemory, Permissions, VolatileSlice};

use crate::error::{Error, FileName, Role};

/// An open file with its name for errors, the path as the user gave it.
#[derive(Debug)]
pub struct NamedFile {
    /// The name in messages.
    pub name: String,
    /// Open for reading. Its file offset is neither used nor changed.
    pub file: File,
}

/// A [`NamedFile`] known to be a regular, non-empty file.
pub(crate) struct Source<'a> {
    name: FileName,
    file: &'a File,
    length: u64,
}

impl<'a> Source<'a> {
    /// Accepts a regular file that has bytes.
    pub(crate) fn new(role: Role, named: &'a NamedFile) -> Result<Self, Error> {
        let name = FileName { role, name: named.name.clone() };
        let metadata = match named.file.metadata() {
            Ok(metadata) => metadata,
            Err(source) => return Err(Error::Stat { file: name, source }),
        };
        let kind = metadata.file_type();
        let not_a_file = match () {
            () if kind.is_file() => None,
            () if kind.is_dir() => Some("a directory"),
            () if kind.is_block_device() || kind.is_char_device() => Some("a device"),
            () if kind.is_fifo() => Some("a pipe"),
            () => Some("a special file"),
        };
        match (not_a_file, metadata.len()) {
            (Some(kind), _) => Err(Error::NotAFile { file: name, kind }),
            (None, 0) => Err(Error::Empty { file: name }),
            (None, length) => Ok(Self { name, file: &named.file, length }),
        }
    }

    /// The file as messages name it.
    pub(crate) fn name(&self) -> FileName {
        self.name.clone()
    }

    /// Length of the file in bytes when it was opened here; never 0.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Makes an error about the file's content; `problem` is a predicate of the file.
    pub(crate) fn problem(&self, problem: impl Into<String>) -> Error {
        Error::Image { file: self.name(), problem: problem.into() }
    }

    /// Returns an error if `part` reaches beyond the end of the file.
    pub(crate) fn check(&self, part: &str, offset: u64, length: u64) -> Result<(), Error> {
        match offset.checked_add(length) {
            Some(end) if end <= self.length => Ok(()),
            end => Err(self.truncated(part, end.unwrap_or(u64::MAX))),
        }
    }

    /// Fills `buffer` from `offset` on; errors call these bytes `part`.
    pub(crate) fn read(&self, part: &str, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        let length = buffer.len() as u64;
        self.check(part, offset, length)?;
        self.file
            .read_exact_at(buffer, offset)
            .map_err(|source| self.read_error(part, offset, length, source))
    }

    /// Copies `length` bytes from `offset` on to guest memory at `address`; errors call them `part`.
    pub(crate) fn copy<M: GuestMemory>(
        &self,
        memory: &M,
        part: &str,
        offset: u64,
        address: u64,
        length: u64,
    ) -> Result<(), Error> {
        self.check(part, offset, length)?;
        let no_memory =
            |source| Error::GuestMemory { what: format!("{}'s {part}", self.name), address, source };
        let slices = memory
            .get_slices(GuestAddress(address), length as usize, Permissions::Write)
            .map_err(no_memory)?;
        let mut position = offset;
        for slice in slices {
            let slice = slice.map_err(no_memory)?;
            fill(self.file, position, &slice)
                .map_err(|source| self.read_error(part, position, slice.len() as u64, source))?;
            position += slice.len() as u64;
        }
        Ok(())
    }

    /// Calls a file that shrank since it was opened truncated.
    fn read_error(&self, part: &str, offset: u64, length: u64, source: io::Error) -> Error {
        match source.kind() {
            io::ErrorKind::UnexpectedEof => self.truncated(part, offset + length),
            _ => Error::Read { file: self.name(), offset, length, source },
        }
    }

    fn truncated(&self, part: &str, end: u64) -> Error {
        Error::Truncated { file: self.name(), part: part.into(), end, length: self.length }
    }
}

/// Reads the file from `position` on until `slice` is full.
fn fill<B: BitmapSlice>(file: &File, position: u64, slice: &VolatileSlice<'_, B>) -> io::Result<()> {
    let mut done = 0;
    while done < slice.len() {
        let rest = slice.offset(done).map_err(io::Error::other)?;
        let offset = libc::off_t::try_from(position + done as u64).map_err(io::Error::other)?;
        let read = match pread(file, offset, &rest) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            result => result?,
        };
        rest.bitmap().mark_dirty(0, read);
        done += read;
    }
    Ok(())
}

/// Does one `pread` into guest memory; vm-memory's own readers would move the file offset.
#[allow(unsafe_code)]
fn pread<B: BitmapSlice>(file: &File, offset: libc::off_t, into: &VolatileSlice<'_, B>) -> io::Result<usize> {
    let guard = into.ptr_guard_mut();
    // SAFETY: the guard keeps `into.len()` bytes at its pointer writable. No Rust reference to them exists: a
    // VolatileSlice is only accessed through pointers.
    let read = unsafe { libc::pread(file.as_raw_fd(), guard.as_ptr().cast(), into.len(), offset) };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}
