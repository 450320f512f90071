//! Packs a memory, on all cores.
//!
//! ```text
//!   threads:        take the next run ──> read, look for zeros and repeats, compress ──> leave it
//!   the caller:     wait for the run whose turn it is ──> place (`layout`) ──> write ──> report
//! ```
//!
//! No thread is more than a few runs ahead of what is written, so what is in memory at once is some MiB a thread.

use std::collections::BTreeMap;
use std::fs::File;
use std::num::NonZero;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Condvar, Mutex};
use std::thread;

use super::codec::{Compression, Encoder};
use super::footer::Footer;
use super::geometry::Geometry;
use super::index::Builder;
use super::layout::{Layout, Maker, Run, Seen, Spare};
use super::source::Source;
use crate::error::{Error, Result};
use crate::sync::{lock, wait_while};

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

/// Threads to work on, unless a number is given.
pub fn all_cores() -> NonZero<usize> {
    thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN)
}

/// Packs `memory_len` bytes of `source` into the empty `file`, which is called `name` in errors. `progress` is told, now and then,
/// how many bytes of the memory are done. The file is not synced.
///
/// # Errors
/// The packing makes no sense, the source cannot be read, or the file cannot be written.
pub fn pack(
    source: &dyn Source,
    memory_len: u64,
    packing: &Packing,
    (file, name): (&File, &Path),
    progress: &dyn Fn(u64),
) -> Result<()> {
    let geometry = packing.validate(memory_len)?;
    let failed = |source| Error::file("write", name.display(), source);
    let (seen, spare) = (Seen::default(), Spare::default());
    let runs = geometry.chunks().div_ceil(geometry.run());
    let threads = packing.threads.unwrap_or_else(all_cores).get().min(runs as usize);
    let line = Line::new(runs, threads as u32 * AHEAD);
    let mut layout = Layout { source, geometry, seen: &seen, index: Builder::default() };
    let maker = || -> Result<Maker<'_>> {
        let encoder = Encoder::new(packing.compression, packing.chunk_len, packing.least_saving)?;
        Ok(Maker {
            source,
            geometry,
            seen: &seen,
            spare: &spare,
            encoder,
            chunk: Vec::new(),
            other: Vec::new(),
        })
    };
    let makers = (0..threads).map(|_| maker()).collect::<Result<Vec<_>>>()?;
    thread::scope(|scope| -> Result<()> {
        // Whatever ends this, the threads must end with it.
        let _closing = Closing(&line);
        for mut maker in makers {
            let line = &line;
            let work = move || line.work(|run| maker.make(chunks_of(&geometry, run)));
            let started = thread::Builder::new().name("volt-pack".into()).spawn_scoped(scope, work);
            started.map_err(|source| Error::host("start a thread that packs", source))?;
        }
        for run in 0..runs {
            let chunks = chunks_of(&geometry, run);
            let at = layout.index.data_len();
            let (room, len) = layout.place(chunks.start, line.next(run)?)?;
            file.write_all_at(&room[..len], at).map_err(failed)?;
            lock(&spare).push(room);
            progress(geometry.range(chunks.end - 1).end);
        }
        Ok(())
    })?;
    let data_len = layout.index.data_len();
    let (index, table) = layout.index.finish();
    let footer = Footer::new(geometry, data_len, &table);
    // What lies between is a hole, which reads as zeros.
    file.write_all_at(&index, footer.index_at())
        .and_then(|()| file.write_all_at(&[&table[..], &footer.to_bytes()].concat(), footer.table_at()))
        .map_err(failed)
}

/// The chunks of a run.
pub(super) fn chunks_of(geometry: &Geometry, run: u32) -> std::ops::Range<u32> {
    let start = run * geometry.run();
    start..(start + geometry.run()).min(geometry.chunks())
}

/// Runs on their way from the threads that make them to the one that places them.
struct Line {
    state: Mutex<State>,
    changed: Condvar,
    runs: u32,
    ahead: u32,
}

#[derive(Default)]
struct State {
    /// The next one to be made.
    next: u32,
    /// The next one to be placed.
    wanted: u32,
    made: BTreeMap<u32, Result<Run>>,
    closed: bool,
}

impl Line {
    fn new(runs: u32, ahead: u32) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), runs, ahead }
    }

    /// Makes runs until there are none left, or nobody wants them any more.
    fn work(&self, mut make: impl FnMut(u32) -> Result<Run>) {
        // A thread that panics leaves a run unmade that the placing one would wait for.
        let _closing = OnPanic(self);
        loop {
            let too_far = |state: &mut State| {
                !state.closed && state.next < self.runs && state.next >= state.wanted + self.ahead
            };
            let mut state = wait_while(&self.changed, lock(&self.state), too_far);
            if state.closed || state.next >= self.runs {
                return;
            }
            let run = state.next;
            state.next += 1;
            drop(state);
            let made = make(run);
            lock(&self.state).made.insert(run, made);
            self.changed.notify_all();
        }
    }

    fn next(&self, run: u32) -> Result<Run> {
        let missing = |state: &mut State| !state.closed && !state.made.contains_key(&run);
        let mut state = wait_while(&self.changed, lock(&self.state), missing);
        state.wanted = run + 1;
        let made = state.made.remove(&run);
        drop(state);
        self.changed.notify_all();
        made.unwrap_or_else(|| {
            Err(Error::host("pack memory", std::io::Error::other("a thread of it has panicked")))
        })
    }

    fn close(&self) {
        lock(&self.state).closed = true;
        self.changed.notify_all();
    }
}

struct Closing<'a>(&'a Line);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

struct OnPanic<'a>(&'a Line);

impl Drop for OnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.close();
        }
    }
}
