//! What memory is to hold that is filled as it is needed. Who stores it, and how, is not known here.

use std::fmt;

use crate::error::Result;

/// A memory in chunks of one size, the last of which may be shorter.
pub trait PageSource: fmt::Debug + Send + Sync {
    /// Bytes in all.
    fn memory_len(&self) -> u64;

    /// Bytes of a chunk: whole pages.
    fn chunk_len(&self) -> u64;

    /// For one thread.
    fn reader(&self) -> Box<dyn ChunkReader + '_>;
}

/// Reads chunk after chunk.
pub trait ChunkReader {
    /// Says what a chunk is, and puts its bytes into `into`, which is as long as the chunk, unless it is zero.
    ///
    /// # Errors
    /// It cannot be read, or is not what it should be. `into` then holds anything.
    fn read(&mut self, chunk: u64, into: &mut [u8]) -> Result<Chunk>;
}

/// What a chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunk {
    /// All zeros.
    Zero,
    /// The bytes that were read.
    Bytes,
}

/// A memory for tests, whose chunks a closure reads.
#[cfg(test)]
pub struct TestSource<F> {
    /// Bytes in all.
    pub len: u64,
    /// Bytes of a chunk.
    pub chunk_len: u64,
    /// Does what [`ChunkReader::read`] says.
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
