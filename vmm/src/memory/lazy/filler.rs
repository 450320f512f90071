//! Fills one memfd, chunk by chunk, from a [`PageSource`]: the base of all VMs that are restored from one snapshot.
//!
//! A page gets into the memfd whole and at once, or not at all: by `UFFDIO_COPY` into a shared mapping of it that is registered with a
//! userfaultfd of its own. Nothing ever writes to that mapping or to the file in another way: a store, or a `pwrite` that is cut
//! short, would publish a page of zeros before its content. A chunk that is zero stays a hole for good.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::thread;

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
use crate::sync::lock;
use crate::threads;

/// See the module.
#[derive(Debug)]
pub struct Filler {
    source: Box<dyn PageSource>,
    memfd: File,
    len: u64,
    /// Whether another process that has the memfd can punch holes in it.
    can_lose_pages: bool,
    /// Looks for the pages of a chunk in the file. None until the first look.
    residence: OnceLock<Residence>,
    /// None once all is there: then nobody writes to the file any more.
    window: RwLock<Option<Window>>,
    /// A bit a chunk: those known to be in the memfd, whole. What is not known is looked for there.
    filled: Box<[AtomicU64]>,
    /// Those of them that were fetched ahead.
    ahead: Box<[AtomicU64]>,
    touched: AtomicU64,
    decoded: AtomicU64,
    patience: Patience,
}

/// Why chunks are fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Somebody waits for them.
    Touched,
    /// Somebody is likely to want them.
    Ahead,
    /// All are wanted.
    All,
}

fn lock_read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// The shared mapping, and what its missing pages are filled through.
#[derive(Debug)]
pub(crate) struct Window {
    start: *mut u8,
    len: u64,
    userfault: Userfault,
}

// SAFETY: nobody reads from or writes to the mapping; its address goes to the kernel.
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
            // SAFETY: what children and core dumps get changes nothing here.
            unsafe { rustix::mm::madvise(start, len as usize, advice) }.map_err(refused)?;
        }
        crate::memory::files::memfd::never_huge(window.start, len);
        window.userfault.register(start as u64, len).map_err(refused)?;
        Ok(window)
    }

    /// Puts whole pages into the file at an offset, but for those that are there already. Wakes nobody.
    pub(crate) fn put(&self, offset: u64, bytes: &[u8]) -> rustix::io::Result<()> {
        self.userfault.copy(self.start as u64 + offset, bytes)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the mapping is this object's, and nothing points into it. Before its userfaultfd goes, which is dropped next.
        let _ = unsafe { rustix::mm::munmap(self.start.cast(), self.len as usize) };
    }
}

/// What a thread that fills works with.
pub struct Hands<'f> {
    why: Why,
    reader: Box<dyn ChunkReader + 'f>,
    /// A chunk, with room to begin at a page: the kernel copies whole pages that way three times as fast.
    bytes: Vec<u8>,
}

impl Hands<'_> {
    fn new<'f>(why: Why, reader: Box<dyn ChunkReader + 'f>, chunk_len: u64) -> Hands<'f> {
        Hands { why, reader, bytes: vec![0; (chunk_len + PAGE) as usize] }
    }
}

impl Filler {
    /// Fills `memfd`, which is as long as the source's memory, and may have some of it already.
    ///
    /// # Errors
    /// The host refuses a mapping or a userfaultfd.
    pub fn new(memfd: File, source: Box<dyn PageSource>) -> Result<Self> {
        let len = source.memory_len();
        // One that was sealed has all.
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

    /// Seals the memfd against every writer but this filler, which has it mapped already. The kernel
    /// refuses to punch holes then, so a chunk that was filled stays whole.
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

    /// The file that is filled.
    #[must_use]
    pub fn memfd(&self) -> &File {
        &self.memfd
    }

    /// Bytes in all.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Bytes of a chunk.
    #[must_use]
    pub fn chunk_len(&self) -> u64 {
        self.source.chunk_len()
    }

    /// How many chunks have been read and put into the memfd.
    #[must_use]
    pub fn decoded(&self) -> u64 {
        self.decoded.load(Ordering::Relaxed)
    }

    /// How many of them because somebody waited for them.
    #[must_use]
    pub fn touched(&self) -> u64 {
        self.touched.load(Ordering::Relaxed)
    }

    /// Where the chunks are that were fetched ahead, in order.
    pub fn ahead(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let words = (0..).zip(&self.ahead);
        let chunks = words.flat_map(|(word, bits)| {
            let bits = bits.load(Ordering::Relaxed);
            (0..64).filter(move |bit| bits & 1 << bit != 0).map(move |bit| word * 64 + bit)
        });
        chunks.map(|chunk| self.range(chunk))
    }

    /// What a thread needs to fill.
    #[must_use]
    pub fn hands(&self, why: Why) -> Hands<'_> {
        Hands::new(why, self.source.reader(), self.chunk_len())
    }

    /// Where a chunk lies in memory.
    #[must_use]
    pub fn range(&self, chunk: u64) -> Range<u64> {
        chunk * self.chunk_len()..((chunk + 1) * self.chunk_len()).min(self.len())
    }

    /// Sees to it that a chunk is in the memfd, unless it is zero.
    ///
    /// # Errors
    /// It cannot be read or is not what it should be, or the host has no memory for it: it is not in the memfd then, or not all of it.
    pub fn fill(&self, chunk: u64, hands: &mut Hands<'_>) -> Result<Chunk> {
        let (word, bit) = (&self.filled[(chunk / 64) as usize], 1 << (chunk % 64));
        let Range { start, end } = self.range(chunk);
        if word.load(Ordering::Acquire) & bit != 0
            && (hands.why == Why::Ahead || self.is_whole(start..end, hands)?)
        {
            return Ok(Chunk::Bytes);
        }
        let len = end - start;
        if lock_read(&self.window).is_none() {
            return self.in_whole(start..end, hands);
        }
        let first = hands.bytes.as_ptr().align_offset(PAGE as usize);
        let bytes = &mut hands.bytes[first..][..len as usize];
        if hands.reader.read(chunk, bytes)? == Chunk::Zero {
            return Ok(Chunk::Zero);
        }
        // Sealed meanwhile, it has the chunk.
        let put = || lock_read(&self.window).as_ref().map_or(Ok(()), |window| window.put(start, bytes));
        self.patiently(hands.why, put)
            .map_err(|errno| Error::host(format!("put {len} bytes of guest memory in place"), errno))?;
        // Another may have fetched it at the same time: each of its pages is there once, whosesoever it is, and so it counts once.
        if word.fetch_or(bit, Ordering::AcqRel) & bit == 0 {
            self.decoded.fetch_add(1, Ordering::Relaxed);
            match hands.why {
                Why::Touched => drop(self.touched.fetch_add(1, Ordering::Relaxed)),
                Why::Ahead => drop(self.ahead[(chunk / 64) as usize].fetch_or(bit, Ordering::Relaxed)),
                Why::All => {}
            }
        }
        Ok(Chunk::Bytes)
    }

    /// Whether a chunk that was filled is whole. A VM that has the memfd too may have punched a hole in it:
    /// the chunk is filled again then, for a fault that finds a hole comes again and again. A device's
    /// first touch of a page comes here too, so a base of this process alone costs no look.
    fn is_whole(&self, chunk: Range<u64>, hands: &mut Hands<'_>) -> Result<bool> {
        if self.can_lose_pages { self.has_all(&chunk, hands) } else { Ok(true) }
    }

    /// Says what a chunk is in a base that is complete. A chunk with a hole is zero, even if some of its
    /// pages are there: a fork that reads a hole publishes a page of zeros.
    fn in_whole(&self, chunk: Range<u64>, hands: &mut Hands<'_>) -> Result<Chunk> {
        Ok(if self.has_all(&chunk, hands)? { Chunk::Bytes } else { Chunk::Zero })
    }

    /// Whether the memfd has every page of a chunk. Overwrites the bytes in `hands`.
    fn has_all(&self, chunk: &Range<u64>, hands: &mut Hands<'_>) -> Result<bool> {
        let failed = |errno| Error::host("look for a chunk in guest memory", errno);
        let residence = match self.residence.get() {
            Some(residence) => residence,
            None => {
                let residence = Residence::of(&self.memfd, self.len).map_err(failed)?;
                self.residence.get_or_init(|| residence)
            }
        };
        residence.has_all(&self.memfd, chunk, &mut hands.bytes).map_err(failed)
    }

    /// Seals the file against everyone, once [`Filler::complete`] is done: VMs that trust no other can have it then.
    ///
    /// # Errors
    /// Somebody else has it mapped to write to it.
    pub fn seal(&self) -> io::Result<()> {
        drop(self.window.write().unwrap_or_else(PoisonError::into_inner).take());
        seal(&self.memfd)
    }

    /// Waits for memory that the host lacks, as [`Patience::retry`] does. Reading ahead does not wait.
    pub(crate) fn patiently(
        &self,
        why: Why,
        mut act: impl FnMut() -> rustix::io::Result<()>,
    ) -> rustix::io::Result<()> {
        match why {
            Why::Ahead => act().inspect(|()| self.patience.succeeded()),
            Why::Touched | Why::All => self.patience.retry(act),
        }
    }

    /// Fills all that is not there yet, on all cores. Afterwards a hole in the memfd is a page of zeros, and the memfd as good a base as
    /// any. Chunks are looked for in the file itself: a filler before this one may have filled it.
    ///
    /// # Errors
    /// As [`Filler::fill`], of the first chunk that fails.
    pub fn complete(&self) -> Result<()> {
        let data = data_ranges(&self.memfd, self.len()).map_err(|source| {
            Error::file("look for holes in", Path::new("guest memory").display(), source)
        })?;
        let chunks = self.len().div_ceil(self.chunk_len());
        let (next, failed) = (AtomicU64::new(0), Mutex::new(None));
        let work = || {
            let mut hands = self.hands(Why::All);
            while lock(&failed).is_none() {
                let chunk = next.fetch_add(1, Ordering::Relaxed);
                if chunk >= chunks {
                    return;
                }
                let range = self.range(chunk);
                let before = data.partition_point(|data| data.end < range.end);
                let is_there = data.get(before).is_some_and(|data| data.start <= range.start);
                if is_there {
                    continue;
                }
                if let Err(error) = self.fill(chunk, &mut hands) {
                    lock(&failed).get_or_insert(error);
                }
            }
        };
        let threads = thread::available_parallelism().map_or(1, usize::from).min(chunks as usize);
        threads::share_work("fill", (0..threads).map(|_| &work));
        failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).map_or(Ok(()), Err)
    }
}
