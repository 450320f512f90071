//! Disk space for a snapshot's memory, reserved before the first page is copied.
//!
//! The size is not known before: pages of zeros become holes. Space is reserved for every page that may
//! hold data, and only if that fails are the pages read. The size of packed memory is unknown until it is
//! packed: space is reserved for the unpacked pages, which lie beside the pack meanwhile.

use std::cell::OnceCell;
use std::fs::File;
use std::os::unix::fs::FileExt;

use super::captured::populated;
use super::small_diff::is_small;
use crate::error::{Error, Result};
use crate::memory::PAGE;
use crate::memory::dirty::freeze;
use crate::memory::page_set::PageSet;
use crate::memory::ram::GuestRam;
use crate::progress::Progress;
use crate::snapshot::format::holes::is_zero;
use crate::snapshot::opened::memory::LazyMemory;
use crate::snapshot::take::capture::SpaceOnDisk;
use crate::store::reservation::SpaceReservation;

/// Bytes for the files beside memory and layers.
const STATE: u64 = 1 << 20;

/// The part of memory that the snapshot will write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryToWrite {
    /// The captured pages.
    Pages,
    /// The captured pages if they are few, otherwise all of memory.
    PagesIfFew,
    /// All of memory.
    Whole,
}

/// See the module.
pub(crate) struct DiskSpace<'a> {
    reserve: &'a dyn Fn(u64) -> Result<SpaceReservation>,
    written: MemoryToWrite,
    /// Bytes of disks' layers.
    layers: u64,
    /// Memory that fills the VM's base on touch.
    lazy: Option<LazyMemory>,
    /// Cancels reading memory.
    progress: &'a Progress,
    reserved: OnceCell<SpaceReservation>,
}

impl<'a> DiskSpace<'a> {
    /// `reserve` reserves a number of bytes in the file system of the snapshot.
    pub fn new(
        reserve: &'a dyn Fn(u64) -> Result<SpaceReservation>,
        written: MemoryToWrite,
        layers: u64,
        lazy: Option<LazyMemory>,
        progress: &'a Progress,
    ) -> Self {
        Self { reserve, written, layers, lazy, progress, reserved: OnceCell::new() }
    }

    /// Reserves `bytes` more, for clusters written meanwhile.
    ///
    /// # Errors
    /// The file system lacks the space.
    pub fn reserve_more(&self, bytes: u64) -> Result<()> {
        let reserved = self.reserved.get().filter(|_| bytes > 0);
        reserved.map_or(Ok(()), |reserved| reserved.grow(bytes))
    }

    /// Reserves space for all pages that a pack lists, because its base may have holes for chunks not fetched
    /// yet. If there is space only for the captured pages, the base is completed and its pages are read.
    fn of_lazy(
        &self,
        lazy: &LazyMemory,
        ram: &GuestRam,
        unneeded: &PageSet,
        pages: &PageSet,
    ) -> Result<SpaceReservation> {
        let mut all = PageSet::none(ram.len());
        lazy.memory.add_populated(&mut all)?;
        all.remove_all(unneeded);
        all.add_all(pages);
        (self.reserve)(all.len() * PAGE + STATE + self.layers).or_else(|lacks_room| {
            let least = (self.reserve)(pages.len() * PAGE + STATE + self.layers);
            drop(least.map_err(|_| lacks_room)?);
            // The snapshot completes the base anyway, after the pages are copied.
            freeze::complete(ram, self.progress)?;
            self.of_whole(ram, unneeded, pages)
        })
    }

    fn of_whole(&self, ram: &GuestRam, unneeded: &PageSet, pages: &PageSet) -> Result<SpaceReservation> {
        let base = ram.base().file;
        let all = populated(ram.data_of_base(), unneeded, pages, ram.len())?;
        (self.reserve)(all.len() * PAGE + STATE + self.layers).or_else(|_| {
            let mut of_base = all;
            of_base.remove_all(pages);
            let zeros = zeros(&base, &of_base, self.progress)?;
            (self.reserve)((of_base.len() + pages.len() - zeros) * PAGE + STATE + self.layers)
        })
    }
}

impl SpaceOnDisk for DiskSpace<'_> {
    fn reserve(&self, ram: &GuestRam, unneeded: &PageSet, pages: &PageSet) -> Result<()> {
        let only_pages = match self.written {
            MemoryToWrite::Pages => true,
            MemoryToWrite::PagesIfFew => is_small(pages, &ram.base().file, self.lazy.as_ref())?,
            MemoryToWrite::Whole => false,
        };
        let reserved = if only_pages {
            (self.reserve)(pages.len() * PAGE + PageSet::bytes_len(ram.len()) + STATE + self.layers)?
        } else if let Some(lazy) = self.lazy.as_ref().filter(|_| self.written == MemoryToWrite::PagesIfFew) {
            self.of_lazy(lazy, ram, unneeded, pages)?
        } else {
            self.of_whole(ram, unneeded, pages)?
        };
        self.reserved.get_or_init(|| reserved);
        Ok(())
    }

    fn about_to_write(&self, bytes: u64) {
        self.reserved.get().into_iter().for_each(|reserved| reserved.release(bytes));
    }
}

/// Counts the pages of a file that are all zeros.
fn zeros(file: &File, pages: &PageSet, progress: &Progress) -> Result<u64> {
    let failed = |source| Error::host("look for pages of zeros in guest memory", source);
    let (mut found, mut buffer) = (0, vec![0; 1 << 20]);
    for step in pages.page_ranges_up_to(buffer.len() as u64) {
        let bytes = &mut buffer[..(step.end - step.start) as usize];
        progress.check()?;
        file.read_exact_at(bytes, step.start).map_err(failed)?;
        found += bytes.chunks(PAGE as usize).filter(|page| is_zero(page)).count() as u64;
    }
    Ok(found)
}
