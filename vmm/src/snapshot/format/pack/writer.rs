//! Packs a memory on all cores.
//!
//! ```text
//!   every thread:   take the next run ──> read, look for zeros and repeats, compress ──> leave it with the others
//!                   is it the next in the file, and nobody at it?  place (`layout`) and write what is there in a row
//! ```
//!
//! Each thread may be a few runs ahead of the writing, so runs take some MiB of memory per thread.

use std::collections::BTreeMap;
use std::fs::File;
use std::num::NonZero;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;

use super::checksum::ByteDigest;
use super::codec::{Compression, Encoder};
use super::footer::Footer;
use super::geometry::Geometry;
use super::index::IndexBuilder;
use super::layout::{FirstChunks, PackLayout, PackedRun, RunPacker, SpareBuffers};
use crate::error::{Error, Invalid, Result};
use crate::progress::Progress;
use crate::snapshot::format::source::{MemorySource, threads_for};
use crate::sync::{lock, wait_while};
use crate::threads;

/// Runs that each thread may be ahead of the writing.
const AHEAD: u32 = 2;

/// Options of packing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Packing {
    /// Compression of chunks.
    pub compression: Compression,
    /// Bytes of a chunk: a power of two from 4 KiB to 2 MiB.
    pub chunk_len: u32,
    /// A chunk is stored compressed if that saves at least this much of it, in percent.
    pub least_saving: u8,
    /// Number of threads; one a core by default.
    pub threads: Option<NonZero<usize>>,
}

impl Packing {
    /// Default bytes of a chunk; `benches/pack` shows why.
    pub const CHUNK_LEN: u32 = 64 << 10;
    /// Default in percent. A smaller saving is not worth decoding.
    pub const LEAST_SAVING: u8 = 5;

    /// Packs with this compression, and defaults otherwise.
    #[must_use]
    pub fn new(compression: Compression) -> Self {
        Self { compression, chunk_len: Self::CHUNK_LEN, least_saving: Self::LEAST_SAVING, threads: None }
    }

    /// Makes the packing that a user's options ask for; without a compression, none.
    ///
    /// # Errors
    /// [`Invalid::WithoutCompression`]: the other options go with a compression.
    pub fn from_options(
        compression: Option<Compression>,
        chunk_len: Option<u32>,
        least_saving: Option<u8>,
    ) -> Result<Option<Self>> {
        let detail = [("chunk_size", chunk_len.is_some()), ("least_saving", least_saving.is_some())];
        match (compression, detail.iter().find(|(_, given)| *given)) {
            (Some(compression), _) => Ok(Some(Self::with(compression, chunk_len, least_saving))),
            (None, Some((option, _))) => Err(Error::config(option, Invalid::WithoutCompression { option })),
            (None, None) => Ok(None),
        }
    }

    /// Packs with the values that the user gave, and defaults otherwise.
    #[must_use]
    pub fn with(compression: Compression, chunk_len: Option<u32>, least_saving: Option<u8>) -> Self {
        let best = Self::new(compression);
        Self {
            chunk_len: chunk_len.unwrap_or(best.chunk_len),
            least_saving: least_saving.unwrap_or(best.least_saving),
            ..best
        }
    }

    /// Bytes of a chunk.
    #[must_use]
    pub fn chunk_len(self, chunk_len: u32) -> Self {
        Self { chunk_len, ..self }
    }

    /// Least saving in percent for which a chunk is stored compressed.
    #[must_use]
    pub fn least_saving(self, percent: u8) -> Self {
        Self { least_saving: percent, ..self }
    }

    /// Number of threads.
    #[must_use]
    pub fn threads(self, threads: NonZero<usize>) -> Self {
        Self { threads: Some(threads), ..self }
    }

    /// Checks the values for a memory of `memory_len` bytes.
    ///
    /// # Errors
    /// [`Error::Config`] names the field.
    pub fn validate(&self, memory_len: u64) -> Result<()> {
        self.geometry(memory_len).map(drop)
    }

    /// Checks the values, and returns the lengths of the pack.
    fn geometry(&self, memory_len: u64) -> Result<Geometry> {
        if self.least_saving > 100 {
            return Err(Error::config("least_saving", Invalid::Saving { percent: self.least_saving }));
        }
        Geometry::new(memory_len, self.chunk_len).map_err(|problem| Error::config("chunk_size", problem))
    }
}

/// Packs `memory_len` bytes of `source` into the empty `file`, which is called `name` in errors. The file is
/// not synced. Returns the pack's digest.
///
/// # Errors
/// The packing makes no sense, the source cannot be read, the file cannot be written, or
/// [`Error::Cancelled`].
pub fn pack(
    source: &dyn MemorySource,
    memory_len: u64,
    packing: &Packing,
    (file, name): (&File, &Path),
    progress: &Progress,
) -> Result<u128> {
    let geometry = packing.geometry(memory_len)?;
    let (seen, spare) = (FirstChunks::default(), SpareBuffers::default());
    let runs = geometry.chunks().div_ceil(geometry.run());
    let threads = threads_for(runs, packing.threads);
    let makers = (0..threads).map(|_| {
        let encoder = Encoder::new(packing.compression, packing.chunk_len, packing.least_saving)?;
        let (chunk, other) = (Vec::new(), Vec::new());
        Ok(RunPacker { source, geometry, seen: &seen, spare: &spare, encoder, chunk, other })
    });
    let makers = makers.collect::<Result<Vec<_>>>()?;
    let layout = PackLayout {
        source,
        geometry,
        seen: &seen,
        index: IndexBuilder::default(),
        stored: ByteDigest::default(),
    };
    let out = PackFile { file, name, spare: &spare, progress };
    let line = RunQueue::new(runs, threads as u32 * AHEAD, layout);
    threads::share_work("pack", makers.into_iter().map(|maker| || line.work(maker, &out)));
    let (index, stored) = line.finish()?;
    let data_len = index.data_len();
    let (index, table) = index.finish();
    let footer = Footer::new(geometry, data_len, stored.finish(), &table);
    // A hole lies between, and reads as zeros.
    out.write(&index, footer.index_at())?;
    out.write(&[&table[..], &footer.to_bytes()].concat(), footer.table_at())?;
    Ok(footer.digest)
}

/// The chunks of a run.
pub(crate) fn chunks_of(geometry: &Geometry, run: u32) -> std::ops::Range<u32> {
    let start = run * geometry.run();
    start..(start + geometry.run()).min(geometry.chunks())
}

/// The pack's file, with what writing runs to it needs.
struct PackFile<'a> {
    file: &'a File,
    name: &'a Path,
    spare: &'a SpareBuffers,
    progress: &'a Progress,
}

impl PackFile<'_> {
    fn write(&self, bytes: &[u8], at: u64) -> Result<()> {
        self.file.write_all_at(bytes, at).map_err(|source| Error::file("write", self.name.display(), source))
    }

    /// Writes the next run.
    fn place(&self, layout: &mut PackLayout<'_>, number: u32, run: PackedRun) -> Result<()> {
        let chunks = chunks_of(&layout.geometry, number);
        let at = layout.index.data_len();
        let (room, len) = layout.place(chunks.start, run)?;
        layout.stored.add(&room[..len]);
        self.write(&room[..len], at)?;
        lock(self.spare).push(room);
        let geometry = &layout.geometry;
        self.progress.add(geometry.range(chunks.end - 1).end - geometry.range(chunks.start).start)
    }
}

/// The queue of encoded runs on their way into the file.
struct RunQueue<'a> {
    state: Mutex<RunQueueState<'a>>,
    changed: Condvar,
    runs: u32,
    ahead: u32,
}

struct RunQueueState<'a> {
    /// The next run to encode.
    next: u32,
    /// The next run to write.
    wanted: u32,
    made: BTreeMap<u32, PackedRun>,
    /// Absent while a thread writes runs.
    layout: Option<PackLayout<'a>>,
    /// Set by the first error, or by a panic.
    closed: bool,
    error: Option<Error>,
}

impl<'a> RunQueue<'a> {
    fn new(runs: u32, ahead: u32, layout: PackLayout<'a>) -> Self {
        let (made, layout) = (BTreeMap::new(), Some(layout));
        let state = RunQueueState { next: 0, wanted: 0, made, layout, closed: false, error: None };
        Self { state: Mutex::new(state), changed: Condvar::new(), runs, ahead }
    }

    /// Encodes runs until all are taken or the queue is closed.
    fn work(&self, mut maker: RunPacker<'_>, out: &PackFile<'_>) {
        // The other threads would wait for the run of a thread that panics.
        let _closing = OnPanic(self);
        loop {
            let too_far = |state: &mut RunQueueState<'_>| {
                !state.closed && state.next < self.runs && state.next >= state.wanted + self.ahead
            };
            let mut state = wait_while(&self.changed, lock(&self.state), too_far);
            if state.closed || state.next >= self.runs {
                return;
            }
            let run = state.next;
            state.next += 1;
            drop(state);
            let made = maker.make(chunks_of(&maker.geometry, run));
            if let Err(error) = made.and_then(|made| self.leave(run, made, out)) {
                self.close(Some(error));
                return;
            }
        }
    }

    /// Adds an encoded run. Then writes all runs that follow the file's last, unless another thread does so;
    /// that thread checks again after each run.
    fn leave(&self, run: u32, made: PackedRun, out: &PackFile<'_>) -> Result<()> {
        let mut state = lock(&self.state);
        state.made.insert(run, made);
        let Some(mut layout) = state.layout.take() else { return Ok(()) };
        loop {
            let wanted = state.wanted;
            let Some(run) = state.made.remove(&wanted) else {
                state.layout = Some(layout);
                return Ok(());
            };
            drop(state);
            out.place(&mut layout, wanted, run)?;
            state = lock(&self.state);
            state.wanted += 1;
            self.changed.notify_all();
        }
    }

    fn close(&self, error: Option<Error>) {
        let mut state = lock(&self.state);
        state.closed = true;
        state.error = state.error.take().or(error);
        self.changed.notify_all();
    }

    /// Returns the index and the digest of stored bytes. All threads have ended.
    fn finish(self) -> Result<(IndexBuilder, ByteDigest)> {
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        let unfinished = || Error::host("pack memory", std::io::Error::other("not all of it was done"));
        match (state.error, state.layout) {
            (Some(error), _) => Err(error),
            (None, Some(layout)) if state.wanted == self.runs => Ok((layout.index, layout.stored)),
            (None, _) => Err(unfinished()),
        }
    }
}

struct OnPanic<'a, 'b>(&'a RunQueue<'b>);

impl Drop for OnPanic<'_, '_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.close(None);
        }
    }
}
