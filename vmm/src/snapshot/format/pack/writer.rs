//! Packs a memory, on all cores.
//!
//! ```text
//!   every thread:   take the next run ──> read, look for zeros and repeats, compress ──> leave it with the others
//!                   is it the next in the file, and nobody at it?  place (`layout`) and write what is there in a row
//! ```
//!
//! No thread is more than a few runs ahead of what is written, so what is in memory at once is some MiB a thread.

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
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::snapshot::format::source::{MemorySource, threads_for};
use crate::sync::{lock, wait_while};
use crate::threads;

/// Runs a thread may be ahead of what is written.
const AHEAD: u32 = 2;

/// How a memory is to be packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packing {
    /// How chunks are compressed.
    pub compression: Compression,
    /// Bytes of a chunk: a power of two from 4 KiB to 2 MiB.
    pub chunk_len: u32,
    /// A chunk is stored compressed only where that saves at least so much of it, in percent.
    pub least_saving: u8,
    /// Threads that compress; as many as there are cores unless given.
    pub threads: Option<NonZero<usize>>,
}

impl Packing {
    /// Bytes of a chunk, unless given: `benches/pack` says why.
    pub const CHUNK_LEN: u32 = 64 << 10;
    /// Percent, unless given. What saves less is not worth decoding.
    pub const LEAST_SAVING: u8 = 5;

    /// With everything else as it is best.
    #[must_use]
    pub fn new(compression: Compression) -> Self {
        Self { compression, chunk_len: Self::CHUNK_LEN, least_saving: Self::LEAST_SAVING, threads: None }
    }

    /// With what a user has given, and everything else as it is best.
    #[must_use]
    pub fn with(compression: Compression, chunk_len: Option<u32>, least_saving: Option<u8>) -> Self {
        let best = Self::new(compression);
        Self {
            chunk_len: chunk_len.unwrap_or(best.chunk_len),
            least_saving: least_saving.unwrap_or(best.least_saving),
            ..best
        }
    }

    /// Checks what a user may have given.
    ///
    /// # Errors
    /// [`Error::Config`] names the field.
    pub fn validate(&self, memory_len: u64) -> Result<Geometry> {
        if self.least_saving > 100 {
            return Err(Error::config(
                "least_saving",
                format!("{} percent: 0 to 100 can be saved", self.least_saving),
            ));
        }
        Geometry::new(memory_len, self.chunk_len).map_err(|problem| Error::config("chunk_size", problem))
    }
}

/// Packs `memory_len` bytes of `source` into the empty `file`, which is called `name` in errors. The file is not synced. Returns the pack's digest.
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
    let geometry = packing.validate(memory_len)?;
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
    // What lies between is a hole, which reads as zeros.
    out.write(&index, footer.index_at())?;
    out.write(&[&table[..], &footer.to_bytes()].concat(), footer.table_at())?;
    Ok(footer.digest)
}

/// The chunks of a run.
pub(crate) fn chunks_of(geometry: &Geometry, run: u32) -> std::ops::Range<u32> {
    let start = run * geometry.run();
    start..(start + geometry.run()).min(geometry.chunks())
}

/// Where runs go.
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

    /// The run that comes next.
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

/// Runs on their way into the file.
struct RunQueue<'a> {
    state: Mutex<RunQueueState<'a>>,
    changed: Condvar,
    runs: u32,
    ahead: u32,
}

struct RunQueueState<'a> {
    /// The next one to be made.
    next: u32,
    /// The next one to be placed.
    wanted: u32,
    made: BTreeMap<u32, PackedRun>,
    /// Nobody has it who places.
    layout: Option<PackLayout<'a>>,
    /// By an error, the first one, or by a panic.
    closed: bool,
    error: Option<Error>,
}

impl<'a> RunQueue<'a> {
    fn new(runs: u32, ahead: u32, layout: PackLayout<'a>) -> Self {
        let (made, layout) = (BTreeMap::new(), Some(layout));
        let state = RunQueueState { next: 0, wanted: 0, made, layout, closed: false, error: None };
        Self { state: Mutex::new(state), changed: Condvar::new(), runs, ahead }
    }

    /// Makes runs until there are none left, or there is no use in them any more.
    fn work(&self, mut maker: RunPacker<'_>, out: &PackFile<'_>) {
        // A thread that panics leaves a run unmade that the others would wait for.
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

    /// Leaves a run, and places all that are there in a row, unless someone is at it. Who is at it looks once more after each.
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

    /// Once nobody works any more.
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
