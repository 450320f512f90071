//! The subject of a replay: the memory of a snapshot, and the pages of a working set.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::memory::PAGE;
use crate::memory::backing::Backing;
use crate::memory::base::OverlayPages;
use crate::memory::lazy::faults::FaultHandler;
use crate::memory::lazy::prefetch::PageRanges;
use crate::memory::ram::GuestRam;
use crate::snapshot::format::pack::{Decoder, Pack};
use crate::snapshot::opened::grant::Grants;
use crate::snapshot::opened::memory::SnapshotMemory;
use crate::snapshot::opened::relative;
use crate::snapshot::opened::relative::OpenedMemory;
use crate::snapshot::{DIFF_FILE, Metadata, WorkingSet};

/// The memory of a snapshot, and a working set of its pages.
pub struct ReplaySubject {
    pub memory: SnapshotMemory,
    /// Pages of a diff, over its base.
    pub over: Option<OverlayPages>,
    pub set: WorkingSet,
    /// Length of the memory in bytes.
    pub len: u64,
    /// The snapshot's directory.
    pub path: PathBuf,
}

impl ReplaySubject {
    /// Opens the snapshot at `path`, and its base if that is granted.
    pub fn open(path: &Path, metadata: &Metadata, set: WorkingSet, grants: &Grants<'_>) -> Result<Self> {
        let OpenedMemory { memory, over, .. } =
            relative::open(path, metadata, &|base| grants.check_base(base))?;
        Ok(Self { memory, over, set, len: metadata.memory_bytes, path: path.to_owned() })
    }

    /// Returns the files with the snapshot's memory.
    pub fn files(&self) -> Vec<PathBuf> {
        let base = self.memory.name().to_owned();
        self.over.iter().map(|_| self.path.join(DIFF_FILE)).chain([base]).collect()
    }

    /// Returns the offsets of the pages to touch, in their order.
    pub fn pages(&self) -> impl Iterator<Item = u64> {
        self.set.page_ranges().iter().flat_map(|run| run.clone().step_by(PAGE as usize))
    }

    /// Returns the pages to touch that the base has.
    pub fn pages_of_base(&self) -> impl Iterator<Item = u64> {
        self.pages().filter(|page| self.over_at(*page).is_none())
    }

    /// Returns the pages to touch that the diff has.
    pub fn pages_over(&self) -> impl Iterator<Item = u64> {
        self.pages().filter(|page| self.over_at(*page).is_some())
    }

    fn over_at(&self, page: u64) -> Option<&OverlayPages> {
        self.over.as_ref().filter(|over| over.pages.has(page))
    }

    /// Returns the ranges of the base to prefetch. A page of the diff hides the base's page, which is never
    /// touched.
    pub fn page_ranges_of_base(&self) -> PageRanges {
        self.set.page_ranges_without(self.over.as_ref().map(|over| &*over.pages))
    }

    /// Returns the chunks of a pack with the base's pages, in their order. A chunk may appear more than once.
    pub fn chunks(&self, chunk_len: u64) -> Vec<u64> {
        let mut chunks: Vec<_> = self.pages_of_base().map(|page| page / chunk_len).collect();
        chunks.dedup();
        chunks
    }

    /// Reads all pages to touch into the page cache, and verifies the chunks of a pack.
    ///
    /// # Errors
    /// Returns an error if a page cannot be read or a chunk is damaged.
    pub fn read(&self) -> Result<()> {
        if let Some(over) = &self.over {
            read_pages(&over.file, &self.path.join(DIFF_FILE), self.pages_over())?;
        }
        match &self.memory {
            SnapshotMemory::Raw(file, path) => read_pages(file, path, self.pages_of_base()),
            SnapshotMemory::Packed(packed) => self.read_chunks(&packed.pack),
        }
    }

    fn read_chunks(&self, pack: &Pack) -> Result<()> {
        let (mut decoder, mut room) = (Decoder::new(), Vec::new());
        for chunk in self.chunks(pack.chunk_len().into()) {
            let chunk = chunk as u32; // a pack has at most 2^28
            room.resize(pack.geometry().len_of(chunk), 0);
            pack.read_chunk(chunk, &mut room, &mut decoder)?;
        }
        Ok(())
    }

    /// Maps the memory over `base`, as for a VM.
    pub fn map(&self, base: Arc<File>) -> Result<GuestRam> {
        self.map_as(Backing::Private { base, pages: self.over.clone() })
    }

    /// Maps the memory over a base that is filled on touch.
    pub fn map_lazy(&self, handler: Arc<dyn FaultHandler>) -> Result<GuestRam> {
        self.map_as(Backing::Lazy { handler, pages: self.over.clone() })
    }

    fn map_as(&self, backing: Backing) -> Result<GuestRam> {
        let ram = GuestRam::reserve(self.len)?;
        backing.map(&ram)?;
        Ok(ram)
    }
}

fn read_pages(file: &File, name: &Path, pages: impl Iterator<Item = u64>) -> Result<()> {
    let mut page = [0; PAGE as usize];
    let failed = |source| Error::file("read", name.display(), source);
    pages.map(|offset| file.read_exact_at(&mut page, offset)).try_for_each(|read| read.map_err(failed))
}
