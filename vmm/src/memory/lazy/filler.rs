//! Fills one memfd, chunk by chunk, from a [`PageSource`]: the base of all VMs restored from one snapshot.
//!
//! A page enters the memfd atomically: by `UFFDIO_COPY` into a shared mapping registered with a userfaultfd
//! of its own. Nothing writes to that mapping or to the file in another way. A store, or a `pwrite` that is
//! cut short, would publish a page of zeros before its content. A zero chunk stays a hole for good.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard};

use rustix::fs::{SealFlags, fcntl_add_seals, fcntl_get_seals};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::patience::Patience;
use super::resident::Residence;
use super::source::{Chunk, ChunkReader, PageSource};
use super::userfault::Userfault;
use crate::error::{Error, Result};
use crate::memory::PAGE;
use crate::memory::files::data::data_ranges;
use crate::memory::files::sealing::seal;
use crate::progress::Progress;
use crate::sync::lock;
use crate::threads;

/// See the module.
#[derive(Debug)]
pub struct Filler {
    source: Box<dyn PageSource>,
    memfd: File,
    len: u64,
    /// Whether another process with the memfd can punch holes in it.
    can_lose_pages: bool,
    /// Finds the pages of a chunk in the file. Made at the first use.
    residence: OnceLock<Residence>,
    /// Absent once the base is complete and never written again.
    window: RwLock<Option<Window>>,
    /// A bit for each chunk known to be complete in the memfd. Other chunks are looked for in the file.
    filled: Box<[AtomicU64]>,
    /// The chunks that were read ahead.
    ahead: Box<[AtomicU64]>,
    touched: AtomicU64,
    decoded: AtomicU64,
    patience: Patience,
}

/// Reason for fetching a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FillReason {
    /// A fault waits for it.
    Touched,
    /// A VM will probably touch it.
    Ahead,
    /// The whole base is completed.
    All,
}

fn lock_read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// The shared mapping, with the userfaultfd that fills its missing pages.
#[derive(Debug)]
pub(crate) struct Window {
    start: *mut u8,
    len: u64,
    userfault: Userfault,
}

// SAFETY: no thread reads from or writes to the mapping; only the kernel gets its address.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    pub(crate) fn over(memfd: &File, len: u64) -> Result<Self> {
        let userfault = Userfault::new()?;
        let refused = |errno| Error::host("map the memory that VMs are to share", errno);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len as usize, access, flags, memfd, 0) }
            .map_err(refused)?;
        let window = Self { start: start.cast(), len, userfault };
        for advice in [Advice::LinuxDontFork, Advice::LinuxDontDump] {
            // SAFETY: this advice affects only forked processes and core dumps.
            unsafe { rustix::mm::madvise(start, len as usize, advice) }.map_err(refused)?;
        }
        crate::memory::files::memfd::never_huge(window.start, len);
        window.userfault.register(start as u64, len).map_err(refused)?;
        Ok(window)
    }

    /// Puts whole pages into the file at an offset, except present ones. Wakes nothing.
    pub(crate) fn put(&self, offset: u64, bytes: &[u8]) -> rustix::io::Result<()> {
        self.userfault.copy(self.start as u64 + offset, bytes)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this object, and nothing points into it. It goes before its
        // userfaultfd, which is dropped next.
        let _ = unsafe { rustix::mm::munmap(self.start.cast(), self.len as usize) };
    }
}

/// A thread's reader and buffer.
pub struct ChunkTools<'f> {
    why: FillReason,
    reader: Box<dyn ChunkReader + 'f>,
    /// Buffer for a chunk, with space to align it to a page: the kernel copies aligned pages three times as
    /// fast.
    bytes: Vec<u8>,
    /// Whether the last chunk was read, and not found in the memfd.
    has_read: bool,
}

impl ChunkTools<'_> {
    fn new<'f>(why: FillReason, reader: Box<dyn ChunkReader + 'f>, chunk_len: u64) -> ChunkTools<'f> {
        ChunkTools { why, reader, bytes: vec![0; (chunk_len + PAGE) as usize], has_read: false }
    }

    /// Whether the last [`Filler::fill`] read the chunk from its source.
    #[must_use]
    pub fn has_read(&self) -> bool {
        self.has_read
    }
}

impl Filler {
    /// Makes a filler of `memfd`, which is as long as the source's memory and may already hold chunks.
    ///
    /// # Errors
    /// The host refuses a mapping or a userfaultfd.
    pub fn new(memfd: File, source: Box<dyn PageSource>) -> Result<Self> {
        let len = source.memory_len();
        // A sealed memfd is complete.
        let is_sealed = fcntl_get_seals(&memfd).is_ok_and(|seals| seals.contains(SealFlags::WRITE));
        let window = if is_sealed { None } else { Some(Window::over(&memfd, len)?) };
        let window = RwLock::new(window);
        let chunks = len.div_ceil(source.chunk_len());
        let [filled, ahead] = [(); 2].map(|()| (0..chunks.div_ceil(64)).map(|_| AtomicU64::new(0)).collect());
        let [touched, decoded] = [(); 2].map(|()| AtomicU64::new(0));
        let (can_lose_pages, residence) = (!is_sealed, OnceLock::new());
        Ok(Self {
            source,
            memfd,
            len,
            can_lose_pages,
            residence,
            window,
            filled,
            ahead,
            touched,
            decoded,
            patience: Patience::default(),
        })
    }

    /// Seals the memfd against every writer but this filler, which has it mapped. The kernel then refuses to
    /// punch holes, so a filled chunk stays complete.
    ///
    /// # Errors
    /// The memfd refuses seals.
    pub(crate) fn seal_against_others(&mut self) -> Result<()> {
        let seals = SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&self.memfd, seals)
            .map_err(|errno| Error::host("seal the memory that VMs are to share", errno))?;
        self.can_lose_pages = false;
        Ok(())
    }

    /// The memfd.
    #[must_use]
    pub fn memfd(&self) -> &File {
        &self.memfd
    }

    /// Length of the memory in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Bytes of a chunk.
    #[must_use]
    pub fn chunk_len(&self) -> u64 {
        self.source.chunk_len()
    }

    /// Number of chunks read and put into the memfd.
    #[must_use]
    pub fn decoded(&self) -> u64 {
        self.decoded.load(Ordering::Relaxed)
    }

    /// Number of chunks for which a fault waited.
    #[must_use]
    pub fn touched(&self) -> u64 {
        self.touched.load(Ordering::Relaxed)
    }

    /// Offsets of the chunks that were read ahead, in ascending order.
    pub fn ahead(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let words = (0..).zip(&self.ahead);
        let chunks = words.flat_map(|(word, bits)| {
            let bits = bits.load(Ordering::Relaxed);
            (0..64).filter(move |bit| bits & 1 << bit != 0).map(move |bit| word * 64 + bit)
        });
        chunks.map(|chunk| self.range(chunk))
    }

    /// A thread's tools for filling.
    #[must_use]
    pub fn tools(&self, why: FillReason) -> ChunkTools<'_> {
        ChunkTools::new(why, self.source.reader(), self.chunk_len())
    }

    /// Memory range of a chunk.
    #[must_use]
    pub fn range(&self, chunk: u64) -> Range<u64> {
        chunk * self.chunk_len()..((chunk + 1) * self.chunk_len()).min(self.len())
    }

    /// Puts a chunk into the memfd, unless it is zero or present.
    ///
    /// # Errors
    /// The chunk cannot be read, fails verification, or the host has no memory for it. The memfd then lacks
    /// it, or a part of it.
    pub fn fill(&self, chunk: u64, tools: &mut ChunkTools<'_>) -> Result<Chunk> {
        let (word, bit) = (&self.filled[(chunk / 64) as usize], 1 << (chunk % 64));
        let Range { start, end } = self.range(chunk);
        tools.has_read = false;
        if word.load(Ordering::Acquire) & bit != 0
            && (tools.why == FillReason::Ahead || self.is_whole(start..end, tools)?)
        {
            return Ok(Chunk::Bytes);
        }
        let len = end - start;
        if lock_read(&self.window).is_none() {
            return self.in_whole(start..end, tools);
        }
        let first = tools.bytes.as_ptr().align_offset(PAGE as usize);
        let bytes = &mut tools.bytes[first..][..len as usize];
        tools.has_read = true;
        if tools.reader.read(chunk, bytes)? == Chunk::Zero {
            return Ok(Chunk::Zero);
        }
        // The memfd was sealed meanwhile, so it has the chunk.
        let put = || lock_read(&self.window).as_ref().map_or(Ok(()), |window| window.put(start, bytes));
        self.patiently(tools.why, put)
            .map_err(|errno| Error::host(format!("fill {len} bytes of guest memory"), errno))?;
        // Another thread may have fetched the chunk at the same time. Each of its pages is there once, so it
        // counts once.
        if word.fetch_or(bit, Ordering::AcqRel) & bit == 0 {
            self.decoded.fetch_add(1, Ordering::Relaxed);
            match tools.why {
                FillReason::Touched => drop(self.touched.fetch_add(1, Ordering::Relaxed)),
                FillReason::Ahead => drop(self.ahead[(chunk / 64) as usize].fetch_or(bit, Ordering::Relaxed)),
                FillReason::All => {}
            }
        }
        Ok(Chunk::Bytes)
    }

    /// Whether a filled chunk is still complete. A VM with the memfd may have punched a hole in it; the chunk
    /// is then filled again, because a fault on a hole repeats without end. A device's first touch of a page
    /// comes here too, so a base of this process alone skips the check.
    fn is_whole(&self, chunk: Range<u64>, tools: &mut ChunkTools<'_>) -> Result<bool> {
        if self.can_lose_pages { self.has_all(&chunk, tools) } else { Ok(true) }
    }

    /// Kind of a chunk in a complete base. A chunk with a hole is zero, even if some of its pages are
    /// present: a fork that reads a hole publishes a page of zeros.
    fn in_whole(&self, chunk: Range<u64>, tools: &mut ChunkTools<'_>) -> Result<Chunk> {
        Ok(if self.has_all(&chunk, tools)? { Chunk::Bytes } else { Chunk::Zero })
    }

    /// Whether the memfd has every page of a chunk. Overwrites the buffer in `tools`.
    fn has_all(&self, chunk: &Range<u64>, tools: &mut ChunkTools<'_>) -> Result<bool> {
        let failed = |errno| Error::host("look for a chunk in guest memory", errno);
        let residence = match self.residence.get() {
            Some(residence) => residence,
            None => {
                let residence = Residence::of(&self.memfd, self.len).map_err(failed)?;
                self.residence.get_or_init(|| residence)
            }
        };
        residence.has_all(&self.memfd, chunk, &mut tools.bytes).map_err(failed)
    }

    /// Seals the memfd against all writers, after [`Filler::complete`]: mutually distrusting VMs may have it
    /// then.
    ///
    /// # Errors
    /// Another process maps it writable.
    pub fn seal(&self) -> io::Result<()> {
        drop(self.window.write().unwrap_or_else(PoisonError::into_inner).take());
        seal(&self.memfd)
    }

    /// Waits for memory that the host lacks, as [`Patience::retry`]. Reading ahead does not wait.
    pub(crate) fn patiently(
        &self,
        why: FillReason,
        mut act: impl FnMut() -> rustix::io::Result<()>,
    ) -> rustix::io::Result<()> {
        match why {
            FillReason::Ahead => act().inspect(|()| self.patience.succeeded()),
            FillReason::Touched | FillReason::All => self.patience.retry(act),
        }
    }

    /// Completes the memfd on all cores: afterwards a hole is a page of zeros, and the memfd is an ordinary
    /// base. Looks for chunks in the file itself, because another filler may have put some there.
    ///
    /// # Errors
    /// As [`Filler::fill`], of the first chunk that fails; or [`Error::Cancelled`].
    pub fn complete(&self, progress: &Progress) -> Result<()> {
        let data = data_ranges(&self.memfd, self.len()).map_err(|source| {
            Error::file("look for holes in", Path::new("guest memory").display(), source)
        })?;
        let chunks = self.len().div_ceil(self.chunk_len());
        let is_there = |range: &Range<u64>| {
            let before = data.partition_point(|data| data.end < range.end);
            data.get(before).is_some_and(|data| data.start <= range.start)
        };
        let missing = (0..chunks).map(|chunk| self.range(chunk)).filter(|range| !is_there(range));
        progress.expect(missing.map(|range| range.end - range.start).sum());
        let (next, failed) = (AtomicU64::new(0), Mutex::new(None));
        let work = || {
            let mut tools = self.tools(FillReason::All);
            while lock(&failed).is_none() {
                let chunk = next.fetch_add(1, Ordering::Relaxed);
                if chunk >= chunks {
                    return;
                }
                let range = self.range(chunk);
                if is_there(&range) {
                    continue;
                }
                let filled = progress.check().and_then(|()| self.fill(chunk, &mut tools));
                if let Err(error) = filled.and_then(|_| progress.add(range.end - range.start)) {
                    lock(&failed).get_or_insert(error);
                }
            }
        };
        let threads = threads::available_parallelism().min(chunks as usize);
        threads::share_work("fill", (0..threads).map(|_| &work));
        failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).map_or(Ok(()), Err)
    }
}
