//! Memory that is filled as it is touched, without a VM: for benchmarks and tools that touch it themselves.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::memory::backing::Backing;
use crate::memory::lazy::fault_service::Service;
use crate::memory::lazy::faults::Paging;
pub use crate::memory::lazy::source::{Chunk, ChunkReader, PageSource};
pub use crate::memory::lazy::userfault::Userfault;
use crate::memory::ram::GuestRam;
use crate::snapshot::format::pack::Pack;
use crate::snapshot::source_of;

/// The base of any number of memories: what one of them has touched is there for all.
#[derive(Debug)]
pub struct LazyBase(Arc<Service>);

impl LazyBase {
    /// Of a pack. Nothing is read yet.
    ///
    /// # Errors
    /// The host refuses memory, a userfaultfd or a thread.
    pub fn of(pack: Pack) -> Result<Self> {
        Ok(Self(Arc::new(Service::new(source_of(Arc::new(pack)))?)))
    }

    /// The same, of the pack in `file`, which is called `name` in errors.
    ///
    /// # Errors
    /// It is no pack; or as [`LazyBase::of`].
    pub fn open(file: File, name: &Path) -> Result<Self> {
        Self::of(Pack::open(file, name)?)
    }

    /// The file that is filled.
    #[must_use]
    pub fn file(&self) -> Arc<File> {
        self.0.base()
    }

    /// Another memory over it, mapped as a VM's is.
    ///
    /// # Errors
    /// As [`LazyBase::of`].
    pub fn map(&self) -> Result<Mapped> {
        Mapped::lazy(Arc::clone(&self.0) as _)
    }

    /// How many chunks have been read.
    #[must_use]
    pub fn chunks_fetched(&self) -> u64 {
        self.0.filler().decoded()
    }
}

/// The least that a page fault in such memory can cost: what is in it is copied from memory.
#[derive(Debug)]
pub struct Floor(Arc<crate::replay::fault_floor::Floor>);

impl Floor {
    /// Memory with the content of a file and as long as that, copied in chunks of so many bytes.
    ///
    /// # Errors
    /// As [`LazyBase::of`].
    pub fn over(image: Arc<File>, chunk_len: u64) -> Result<Self> {
        Ok(Self(Arc::new(crate::replay::fault_floor::Floor::over(image, chunk_len)?)))
    }

    /// A memory over it, mapped as a VM's is.
    ///
    /// # Errors
    /// As [`LazyBase::of`].
    pub fn map(&self) -> Result<Mapped> {
        Mapped::lazy(Arc::clone(&self.0) as _)
    }
}

/// Memory that is mapped as a VM's is.
#[derive(Debug)]
pub struct Mapped(GuestRam);

impl Mapped {
    /// Of a file as long as itself, which is not filled by anyone: as the memory of a raw snapshot is mapped.
    ///
    /// # Errors
    /// The host refuses memory.
    pub fn file(base: &Arc<File>) -> Result<Self> {
        Self::of(Backing::Private { base: Arc::clone(base), pages: None }, base)
    }

    fn lazy(paging: Arc<dyn Paging>) -> Result<Self> {
        let base = paging.base();
        Self::of(Backing::Lazy { paging, pages: None }, &base)
    }

    fn of(backing: Backing, base: &File) -> Result<Self> {
        let failed = |source| Error::host("look at the file that memory is to be mapped from", source);
        let ram = GuestRam::reserve(base.metadata().map_err(failed)?.len())?;
        backing.map(&ram)?;
        Ok(Self(ram))
    }

    /// How long it takes to read the byte at an offset. Where a chunk cannot be had that is a signal.
    ///
    /// # Panics
    /// The offset is beyond the end.
    #[must_use]
    pub fn touch(&self, offset: u64) -> Duration {
        crate::replay::touch::touch(&self.0, offset)
    }
}
