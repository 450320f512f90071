//! Lazily filled memory without a VM, for benchmarks that touch it themselves.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::memory::backing::Backing;
use crate::memory::lazy::fault_service::Service;
use crate::memory::lazy::faults::FaultHandler;
pub use crate::memory::lazy::source::{Chunk, ChunkReader, PageSource};
pub use crate::memory::lazy::userfault::Userfault;
use crate::memory::ram::GuestRam;
use crate::replay::fault_floor::FloorPager;
use crate::snapshot::format::pack::Pack;
use crate::snapshot::opened::chunks::source_of;

/// A lazily filled base, shared by any number of memories.
#[derive(Debug)]
pub struct LazyBase(Arc<Service>);

impl LazyBase {
    /// Makes an empty base of a pack, which is not read yet.
    ///
    /// # Errors
    /// Returns an error if the host refuses memory, a userfaultfd or a thread.
    pub fn of(pack: Pack) -> Result<Self> {
        Ok(Self(Arc::new(Service::new(source_of(Arc::new(pack)))?)))
    }

    /// Makes an empty base of the pack in `file`, which errors call `name`.
    ///
    /// # Errors
    /// Returns an error if the file is no pack, or as [`LazyBase::of`].
    pub fn open(file: File, name: &Path) -> Result<Self> {
        Self::of(Pack::open(file, name)?)
    }

    /// Returns the file that is filled.
    #[must_use]
    pub fn file(&self) -> Arc<File> {
        self.0.base()
    }

    /// Maps another memory over the base, as for a VM.
    ///
    /// # Errors
    /// As [`LazyBase::of`].
    pub fn map(&self) -> Result<Mapped> {
        Mapped::lazy(Arc::clone(&self.0) as _)
    }

    /// Returns the number of chunks read so far.
    #[must_use]
    pub fn chunks_fetched(&self) -> u64 {
        self.0.filler().decoded()
    }
}

/// Lower bound for a page fault in lazily filled memory: chunks are copied from memory.
#[derive(Debug)]
pub struct Floor(Arc<FloorPager>);

impl Floor {
    /// Makes memory with the content of a file, copied in chunks of `chunk_len` bytes.
    ///
    /// # Errors
    /// As [`LazyBase::of`].
    pub fn over(image: Arc<File>, chunk_len: u64) -> Result<Self> {
        Ok(Self(Arc::new(FloorPager::over(image, chunk_len)?)))
    }

    /// Maps a memory over the base, as for a VM.
    ///
    /// # Errors
    /// As [`LazyBase::of`].
    pub fn map(&self) -> Result<Mapped> {
        Mapped::lazy(Arc::clone(&self.0) as _)
    }
}

/// Memory that is mapped as for a VM.
#[derive(Debug)]
pub struct Mapped(GuestRam);

impl Mapped {
    /// Maps a whole file, as for a raw snapshot.
    ///
    /// # Errors
    /// Returns an error if the host refuses memory.
    pub fn file(base: &Arc<File>) -> Result<Self> {
        Self::of(Backing::Private { base: Arc::clone(base), pages: None }, base)
    }

    fn lazy(handler: Arc<dyn FaultHandler>) -> Result<Self> {
        let base = handler.base();
        Self::of(Backing::Lazy { handler, pages: None }, &base)
    }

    fn of(backing: Backing, base: &File) -> Result<Self> {
        let failed = |source| Error::host("get the length of a memory file", source);
        let ram = GuestRam::reserve(base.metadata().map_err(failed)?.len())?;
        backing.map(&ram)?;
        Ok(Self(ram))
    }

    /// Reads the byte at an offset, and returns the time. A chunk that cannot be read raises SIGSEGV or
    /// SIGBUS.
    ///
    /// # Panics
    /// Panics if the offset is beyond the end.
    #[must_use]
    pub fn touch(&self, offset: u64) -> Duration {
        crate::replay::touch::touch(&self.0, offset)
    }
}
