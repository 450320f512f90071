//! What is touched: the memory of a snapshot, and the pages of it that are in a working set.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::memory::PAGE;
use crate::memory::backing::Backing;
use crate::memory::base::OverlayPages;
use crate::memory::lazy::faults::Paging;
use crate::memory::lazy::prefetch::Runs;
use crate::memory::ram::GuestRam;
use crate::snapshot::format::pack::{Decoder, Pack};
use crate::snapshot::opened::grant::Grants;
use crate::snapshot::opened::memory::SnapshotMemory;
use crate::snapshot::opened::relative;
use crate::snapshot::opened::relative::OpenedMemory;
use crate::snapshot::{DIFF_FILE, Metadata, WorkingSet};

/// See the module.
pub struct Subject {
    pub memory: SnapshotMemory,
    /// Those of a diff.
    pub over: Option<OverlayPages>,
    pub set: WorkingSet,
    /// Bytes.
    pub len: u64,
    /// The snapshot's directory.
    pub path: PathBuf,
}

impl Subject {
    /// Opens the snapshot at `path`, and its base if that is granted.
    pub fn open(path: &Path, metadata: &Metadata, set: WorkingSet, grants: &Grants<'_>) -> Result<Self> {
        let OpenedMemory { memory, over, .. } =
            relative::open(path, metadata, &|base| grants.check_base(base))?;
        Ok(Self { memory, over, set, len: metadata.memory_bytes, path: path.to_owned() })
    }

    /// The files that its memory is in.
    pub fn files(&self) -> Vec<PathBuf> {
        let base = self.memory.name().to_owned();
        self.over.iter().map(|_| self.path.join(DIFF_FILE)).chain([base]).collect()
    }

    /// The pages to touch, by their offsets, in their order.
    pub fn pages(&self) -> impl Iterator<Item = u64> {
        self.set.runs().iter().flat_map(|run| run.clone().step_by(PAGE as usize))
    }

    /// Those of them that are the base's.
    pub fn pages_of_base(&self) -> impl Iterator<Item = u64> {
        self.pages().filter(|page| self.over_at(*page).is_none())
    }

    /// Those of them that lie over the base.
    pub fn pages_over(&self) -> impl Iterator<Item = u64> {
        self.pages().filter(|page| self.over_at(*page).is_some())
    }

    fn over_at(&self, page: u64) -> Option<&OverlayPages> {
        self.over.as_ref().filter(|over| over.pages.has(page))
    }

    /// What is read ahead of them where they are packed: what lies under the pages of a diff nobody touches.
    pub fn runs_of_base(&self) -> Runs {
        self.set.runs_without(self.over.as_ref().map(|over| &*over.pages))
    }

    /// The chunks of a pack that those of the base are in, in their order. One may come again.
    pub fn chunks(&self, chunk_len: u64) -> Vec<u64> {
        let mut chunks: Vec<_> = self.pages_of_base().map(|page| page / chunk_len).collect();
        chunks.dedup();
        chunks
    }

    /// Reads all that is to be touched: it is in the page cache then. Of a pack the chunks are verified.
    ///
    /// # Errors
    /// Something cannot be read or is damaged.
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

    /// Its memory over `base`, mapped as a VM's is.
    pub fn map(&self, base: Arc<File>) -> Result<GuestRam> {
        self.map_as(Backing::Private { base, pages: self.over.clone() })
    }

    /// The same over a base that is filled as it is touched.
    pub fn map_lazy(&self, paging: Arc<dyn Paging>) -> Result<GuestRam> {
        self.map_as(Backing::Lazy { paging, pages: self.over.clone() })
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
