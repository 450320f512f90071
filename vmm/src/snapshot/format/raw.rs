//! Reads raw guest memory from a file: `memory.snap`, or the pages of a diff.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use super::source::MemorySource;
use crate::error::{Error, Result};
use crate::memory::files::data::data_ranges;
use crate::memory::page_set::PageSet;

/// See the module. Holes of the file read as zeros.
pub(crate) struct RawSource<'a> {
    file: &'a File,
    failed: &'a (dyn Fn(io::Error) -> Error + Sync),
    populated: Vec<Range<u64>>,
}

impl<'a> RawSource<'a> {
    /// All `len` bytes of the file. `failed` makes the error, which names the file.
    ///
    /// # Errors
    /// The host cannot tell where the file has data.
    pub fn whole(file: &'a File, len: u64, failed: &'a (dyn Fn(io::Error) -> Error + Sync)) -> Result<Self> {
        let populated = data_ranges(file, len).map_err(failed)?;
        Ok(Self { file, failed, populated })
    }

    /// Only `pages` of the file.
    pub fn pages(file: &'a File, pages: &PageSet, failed: &'a (dyn Fn(io::Error) -> Error + Sync)) -> Self {
        Self { file, failed, populated: pages.page_ranges().collect() }
    }
}

impl MemorySource for RawSource<'_> {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(into, offset).map_err(self.failed)
    }

    fn populated(&self) -> &[Range<u64>] {
        &self.populated
    }
}
