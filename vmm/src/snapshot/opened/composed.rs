//! A snapshot's memory as a source of single pages: raw or packed, with the pages of a diff over it.
//!
//! ```text
//!   page ──> in the diff? ──> its file
//!             └─ no ──> raw: memory.snap
//!                       packed: the chunk that it is in, decoded once for pages in a row
//! ```
//!
//! Recordings use it: filling single pages shows which pages the guest touched, not only which chunks.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use super::chunks::source_of;
use super::memory::SnapshotMemory;
use crate::error::{Error, Result};
use crate::memory::PAGE;
use crate::memory::base::OverlayPages;
use crate::memory::lazy::source::{Chunk, ChunkReader, PageSource};
use crate::snapshot::format::holes::is_zero;

/// See the module.
#[derive(Debug)]
pub struct ComposedMemory {
    below: BaseBelow,
    len: u64,
    over: Option<OverlayPages>,
}

#[derive(Debug)]
enum BaseBelow {
    Raw(Arc<File>, PathBuf),
    Packed(Box<dyn PageSource>),
}

impl ComposedMemory {
    /// Wraps `len` bytes of memory.
    pub fn of(memory: &SnapshotMemory, len: u64, over: Option<OverlayPages>) -> Self {
        let below = match memory {
            SnapshotMemory::Raw(file, path) => BaseBelow::Raw(Arc::clone(file), path.clone()),
            SnapshotMemory::Packed(packed) => BaseBelow::Packed(source_of(Arc::clone(&packed.pack))),
        };
        Self { below, len, over }
    }
}

impl PageSource for ComposedMemory {
    fn memory_len(&self) -> u64 {
        self.len
    }

    fn chunk_len(&self) -> u64 {
        PAGE
    }

    fn reader(&self) -> Box<dyn ChunkReader + '_> {
        let below: Box<dyn ChunkReader + '_> = match &self.below {
            BaseBelow::Raw(file, path) => Box::new(RawPages { file, path }),
            BaseBelow::Packed(source) => Box::new(PagesOf {
                source: &**source,
                reader: source.reader(),
                last: None,
                bytes: vec![0; source.chunk_len() as usize],
            }),
        };
        Box::new(ComposedReader { below, over: self.over.as_ref() })
    }
}

struct ComposedReader<'c> {
    below: Box<dyn ChunkReader + 'c>,
    over: Option<&'c OverlayPages>,
}

impl ChunkReader for ComposedReader<'_> {
    fn read(&mut self, page: u64, into: &mut [u8]) -> Result<Chunk> {
        match self.over.filter(|over| over.pages.has(page * PAGE)) {
            Some(OverlayPages { file, .. }) => {
                let read = file.read_exact_at(into, page * PAGE);
                read.map_err(|source| Error::host("read the pages of a diff", source))?;
                Ok(kind_of(into))
            }
            None => self.below.read(page, into),
        }
    }
}

/// The pages of a raw memory file.
struct RawPages<'c> {
    file: &'c File,
    path: &'c PathBuf,
}

impl ChunkReader for RawPages<'_> {
    fn read(&mut self, page: u64, into: &mut [u8]) -> Result<Chunk> {
        let read = self.file.read_exact_at(into, page * PAGE);
        read.map_err(|source| Error::file("read", self.path.display(), source))?;
        Ok(kind_of(into))
    }
}

/// The pages of a pack.
struct PagesOf<'c> {
    source: &'c dyn PageSource,
    reader: Box<dyn ChunkReader + 'c>,
    /// Number and content of the chunk read last.
    last: Option<(u64, Chunk)>,
    bytes: Vec<u8>,
}

impl ChunkReader for PagesOf<'_> {
    fn read(&mut self, page: u64, into: &mut [u8]) -> Result<Chunk> {
        let chunk_len = self.source.chunk_len();
        let (chunk, within) = (page * PAGE / chunk_len, (page * PAGE % chunk_len) as usize);
        let known = self.last.take().filter(|(last, _)| *last == chunk);
        let what = match known {
            Some((_, what)) => what,
            None => {
                let len = chunk_len.min(self.source.memory_len() - chunk * chunk_len);
                self.reader.read(chunk, &mut self.bytes[..len as usize])?
            }
        };
        self.last = Some((chunk, what));
        if what == Chunk::Zero {
            return Ok(Chunk::Zero);
        }
        into.copy_from_slice(&self.bytes[within..within + into.len()]);
        Ok(kind_of(into))
    }
}

fn kind_of(page: &[u8]) -> Chunk {
    if is_zero(page) { Chunk::Zero } else { Chunk::Bytes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::page_set::PageSet;
    use crate::snapshot::format::pack::testing::{BOTH, TestMemory, file_of, noise, open, packed, packing};

    const PAGES: u64 = 150;

    /// Memory with a word in each page, except that every fifth page and a range of 32 are zero.
    fn memory() -> Vec<u8> {
        let mut bytes = noise(7, (PAGES * PAGE) as usize);
        for (number, page) in (0..PAGES).zip(bytes.chunks_mut(PAGE as usize)) {
            if number % 5 == 0 || (64..96).contains(&number) {
                page.fill(0);
            }
        }
        bytes
    }

    fn over() -> OverlayPages {
        let mut pages = PageSet::none(PAGES * PAGE);
        pages.add(3 * PAGE..6 * PAGE);
        pages.add(70 * PAGE..71 * PAGE);
        let mut bytes = vec![9; (PAGES * PAGE) as usize];
        bytes[4 * PAGE as usize..5 * PAGE as usize].fill(0);
        OverlayPages { pages: Arc::new(pages), file: Arc::new(file_of(&bytes)) }
    }

    fn bases() -> Vec<BaseBelow> {
        let memory = memory();
        let raw = BaseBelow::Raw(Arc::new(file_of(&memory)), PathBuf::from("/s/memory.snap"));
        let lens = [4 << 10, 64 << 10, 2 << 20];
        let packings = BOTH.into_iter().flat_map(|codec| lens.map(|len| packing(codec, len)));
        let packs = packings.map(|packing| open(&packed(&TestMemory::of(memory.clone()), &packing)).unwrap());
        [raw].into_iter().chain(packs.map(|pack| BaseBelow::Packed(source_of(Arc::new(pack))))).collect()
    }

    #[test]
    fn composed_pages_equal_memory_in_any_order() {
        for (below, over) in bases()
            .into_iter()
            .map(|below| (below, None))
            .chain(bases().into_iter().map(|below| (below, Some(over()))))
        {
            let mut expected = memory();
            if let Some(OverlayPages { pages, file }) = &over {
                for run in pages.page_ranges() {
                    file.read_exact_at(&mut expected[run.start as usize..run.end as usize], run.start)
                        .unwrap();
                }
            }
            let source = ComposedMemory { below, len: PAGES * PAGE, over };
            let (mut reader, mut page) = (source.reader(), vec![1; PAGE as usize]);
            for number in (0..PAGES).chain((0..PAGES).rev()).chain((0..PAGES).map(|at| at * 67 % PAGES)) {
                let right = &expected[(number * PAGE) as usize..][..PAGE as usize];
                let what = reader.read(number, &mut page).unwrap();
                assert_eq!(what == Chunk::Zero, right.iter().all(|byte| *byte == 0), "{number}");
                assert!(what == Chunk::Zero || page == right, "{number}");
            }
        }
    }

    #[test]
    fn unreadable_page_is_an_error_each_time_and_spares_others() {
        let mut bytes = packed(&TestMemory::of(memory()), &packing(BOTH[0], 64 << 10));
        bytes[70_000] ^= 1; // in the second chunk
        let below = BaseBelow::Packed(source_of(Arc::new(open(&bytes).unwrap())));
        let damaged = ComposedMemory { below, len: PAGES * PAGE, over: None };
        let short = BaseBelow::Raw(
            Arc::new(file_of(&memory()[..20 * PAGE as usize])),
            PathBuf::from("/s/memory.snap"),
        );
        let short = ComposedMemory { below: short, len: PAGES * PAGE, over: None };
        for (source, name) in [(damaged, "/s/memory.pack"), (short, "/s/memory.snap")] {
            let (mut reader, mut page) = (source.reader(), vec![1; PAGE as usize]);
            for _ in 0..2 {
                assert_eq!(reader.read(1, &mut page).unwrap(), Chunk::Bytes);
                for bad in [21, 22, 21] {
                    let error = reader.read(bad, &mut page).unwrap_err().to_string();
                    assert!(error.contains(name), "{error}");
                }
            }
        }
    }
}
