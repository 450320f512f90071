//! Memory that is filled as it is touched, without a VM: for benchmarks and tools that touch it themselves.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use crate::error::Result;
use crate::memory::backing::Backing;
use crate::memory::paging::Paging;
use crate::memory::ram::GuestRam;
use crate::memory::service::Service;
pub use crate::memory::source::{Chunk, ChunkReader, PageSource};
pub use crate::memory::userfault::Userfault;
use crate::snapshot::pack::Pack;
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
    pub fn map(&self) -> Result<LazyMemory> {
        let ram = GuestRam::reserve(self.0.filler().len())?;
        Backing::Lazy { paging: Arc::clone(&self.0) as Arc<dyn Paging>, pages: None }.map(&ram)?;
        Ok(LazyMemory(ram))
    }

    /// How many chunks have been read.
    #[must_use]
    pub fn chunks_fetched(&self) -> u64 {
        self.0.filler().decoded()
    }
}

/// Memory over a [`LazyBase`].
#[derive(Debug)]
pub struct LazyMemory(GuestRam);

impl LazyMemory {
    /// Where the byte at an offset lies. To touch it is a page fault, and a signal if the chunk cannot be had.
    ///
    /// # Panics
    /// The offset is beyond the end.
    #[must_use]
    pub fn address_of(&self, offset: u64) -> *const u8 {
        self.0.host_address_of(offset)
    }
}
