//! Walks through all chunks of a pack on all cores, to verify them or to write the memory out.

use std::fs::File;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::codec::Decoder;
use super::reader::{ChunkKind, Pack};
use super::writer::chunks_of;
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::snapshot::format::digest::of_pages;
use crate::snapshot::format::holes::{is_zero, write_pages};
use crate::snapshot::format::source::threads_for;
use crate::sync::lock;
use crate::threads;

/// Verifies every checksum and every stored byte. Returns the digest of the memory
/// ([`crate::snapshot::format::digest`]). `progress` counts the bytes of memory, and then
/// [`Pack::verified_len`].
///
/// # Errors
/// Returns the error of the first chunk that is damaged or cannot be read; or [`Error::Cancelled`].
pub fn verify(pack: &Pack, progress: &Progress) -> Result<u64> {
    let digest = AtomicU64::new(0);
    for_each(pack, progress, &|chunk, work| match pack.kind(chunk)? {
        ChunkKind::Zero => Ok(()),
        ChunkKind::Stored { .. } => {
            let part = of_pages(pack.geometry().range(chunk).start, work.read(pack, chunk)?);
            digest.fetch_add(part, Ordering::Relaxed);
            Ok(())
        }
    })?;
    pack.verify_stored(progress)?;
    Ok(digest.into_inner())
}

/// Writes the memory into an empty file, with holes for pages of zeros. Verifies every chunk. `name` is the
/// file's name in errors.
///
/// # Errors
/// As [`verify`], except that changed bytes which decode to the right content are no error; or the file
/// cannot be written.
pub fn unpack(pack: &Pack, (file, name): (&File, &Path), progress: &Progress) -> Result<()> {
    let failed = |source| Error::file("write", name.display(), source);
    file.set_len(pack.memory_len()).map_err(failed)?;
    for_each(pack, progress, &|chunk, work| match pack.kind(chunk)? {
        ChunkKind::Zero => Ok(()),
        ChunkKind::Stored { .. } => {
            let content = work.read(pack, chunk)?;
            write_pages(file, pack.geometry().range(chunk).start, content, |_, page| !is_zero(page))
                .map_err(failed)
        }
    })
}

/// A thread's decoder and buffer.
#[derive(Default)]
struct ChunkWorker {
    decoder: Decoder,
    chunk: Vec<u8>,
}

impl ChunkWorker {
    fn read(&mut self, pack: &Pack, chunk: u32) -> Result<&[u8]> {
        self.chunk.resize(pack.geometry().len_of(chunk), 0);
        pack.read_chunk(chunk, &mut self.chunk, &mut self.decoder)?;
        Ok(&self.chunk)
    }
}

/// Calls `each` for every chunk. Threads take runs in order, so when one fails, all runs before it have been
/// taken, and the first error is known at the end.
fn for_each(
    pack: &Pack,
    progress: &Progress,
    each: &(dyn Fn(u32, &mut ChunkWorker) -> Result<()> + Sync),
) -> Result<()> {
    let geometry = pack.geometry();
    let runs = geometry.chunks().div_ceil(geometry.run());
    let next = AtomicU32::new(0);
    let first: Mutex<Option<(u32, Error)>> = Mutex::new(None);
    let work = || {
        let mut work = ChunkWorker::default();
        loop {
            // Checked before taking a run: every run that is taken is finished.
            let failed = lock(&first).is_some();
            let run = if failed { runs } else { next.fetch_add(1, Ordering::Relaxed) };
            if run >= runs {
                return;
            }
            for chunk in chunks_of(&geometry, run) {
                let range = geometry.range(chunk);
                let done = each(chunk, &mut work).and_then(|()| progress.add(range.end - range.start));
                if let Err(error) = done {
                    let mut first = lock(&first);
                    if first.as_ref().is_none_or(|(other, _)| chunk < *other) {
                        *first = Some((chunk, error));
                    }
                    return;
                }
            }
        }
    };
    threads::share_work("unpack", (0..threads_for(runs, None)).map(|_| &work));
    first
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
        .map_or(Ok(()), |(_, error)| Err(error))
}
