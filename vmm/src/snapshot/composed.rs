//! All of a snapshot's memory, page by page, whatever it is made of: raw or packed, and the pages of a diff over it.
//!
//! ```text
//!   page ──> in the diff? ──> its file
//!             └─ no ──> raw: memory.snap
//!                       packed: the chunk that it is in, decoded once for pages in a row
//! ```
//!
//! What is filled from it tells which pages were touched, and not only which chunks: that is what it is for.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use super::chunks::source_of;
use super::memory::Memory;
use crate::error::{Error, Result};
use crate::memory::PAGE;
use crate::memory::backing::OtherPages;
use crate::memory::source::{Chunk, ChunkReader, PageSource};

/// See the module.
#[derive(Debug)]
pub struct Composed {
    below: Below,
    len: u64,
    over: Option<OtherPages>,
}

#[derive(Debug)]
enum Below {
    Raw(Arc<File>, PathBuf),
    Packed(Box<dyn PageSource>),
}

impl Composed {
    /// Of so many bytes of memory.
    pub fn of(memory: &Memory, len: u64, over: Option<OtherPages>) -> Self {
        let below = match memory {
            Memory::Raw(file, path) => Below::Raw(Arc::clone(file), path.clone()),
            Memory::Packed(packed) => Below::Packed(source_of(Arc::clone(&packed.pack))),
        };
        Self { below, len, over }
    }
}

impl PageSource for Composed {
    fn memory_len(&self) -> u64 {
        self.len
    }

    fn chunk_len(&self) -> u64 {
        PAGE
    }

    fn reader(&self) -> Box<dyn ChunkReader + '_> {
        let below: Box<dyn ChunkReader + '_> = match &self.below {
            Below::Raw(file, path) => Box::new(RawPages { file, path }),
            Below::Packed(source) => Box::new(PagesOf {
                source: &**source,
                reader: source.reader(),
                last: None,
                bytes: vec![0; source.chunk_len() as usize],
            }),
        };
        Box::new(Reader { below, over: self.over.as_ref() })
    }
}

struct Reader<'c> {
    below: Box<dyn ChunkReader + 'c>,
    over: Option<&'c OtherPages>,
}

impl ChunkReader for Reader<'_> {
    fn read(&mut self, page: u64, into: &mut [u8]) -> Result<Chunk> {
        match self.over.filter(|over| over.pages.has(page * PAGE)) {
            Some(OtherPages { file, .. }) => {
                let read = file.read_exact_at(into, page * PAGE);
                read.map_err(|source| Error::host("read the pages of a diff", source))?;
                Ok(kind_of(into))
            }
            None => self.below.read(page, into),
        }
    }
}

/// The pages of a file that is memory as it is.
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

/// The pages of chunks.
struct PagesOf<'c> {
    source: &'c dyn PageSource,
    reader: Box<dyn ChunkReader + 'c>,
    /// Which chunk was read last, and what it is.
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
    if page.iter().all(|byte| *byte == 0) { Chunk::Zero } else { Chunk::Bytes }
}
