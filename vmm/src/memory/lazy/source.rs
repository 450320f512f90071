//! Sources of memory that page faults fill. Their storage is unknown here.

use std::fmt;

use crate::error::Result;

/// A memory in chunks of one size. The last one may be shorter.
pub trait PageSource: fmt::Debug + Send + Sync {
    /// Length of the memory in bytes.
    fn memory_len(&self) -> u64;

    /// Bytes of a chunk: whole pages.
    fn chunk_len(&self) -> u64;

    /// Makes a reader for one thread.
    fn reader(&self) -> Box<dyn ChunkReader + '_>;
}

/// Reads chunk after chunk.
pub trait ChunkReader {
    /// Reads a chunk into `into`, which has the chunk's length. A zero chunk leaves `into` unchanged. Returns
    /// the kind of the chunk.
    ///
    /// # Errors
    /// The chunk cannot be read or fails verification. The content of `into` is undefined then.
    fn read(&mut self, chunk: u64, into: &mut [u8]) -> Result<Chunk>;
}

/// Kind of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunk {
    /// All zeros.
    Zero,
    /// Data, which was read.
    Bytes,
}

/// A memory for tests, whose chunks a closure reads.
#[cfg(test)]
pub struct TestSource<F> {
    /// Length of the memory in bytes.
    pub len: u64,
    /// Bytes of a chunk.
    pub chunk_len: u64,
    /// Implements [`ChunkReader::read`].
    pub read: F,
}

#[cfg(test)]
impl<F> fmt::Debug for TestSource<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestSource").finish_non_exhaustive()
    }
}

#[cfg(test)]
impl<F: Fn(u64, &mut [u8]) -> Result<Chunk> + Send + Sync> PageSource for TestSource<F> {
    fn memory_len(&self) -> u64 {
        self.len
    }

    fn chunk_len(&self) -> u64 {
        self.chunk_len
    }

    fn reader(&self) -> Box<dyn ChunkReader + '_> {
        Box::new(self)
    }
}

#[cfg(test)]
impl<F: Fn(u64, &mut [u8]) -> Result<Chunk>> ChunkReader for &TestSource<F> {
    fn read(&mut self, chunk: u64, into: &mut [u8]) -> Result<Chunk> {
        (self.read)(chunk, into)
    }
}
