//! The division of memory into chunks, and of chunks into blocks of the index.

use std::ops::{Range, RangeInclusive};

/// Possible chunk lengths in bytes: powers of two.
pub const CHUNK_LENS: RangeInclusive<u32> = 4 << 10..=2 << 20;
/// Limits the table, which is read at once, to 16 MiB. This is 16 TiB of memory in chunks of 64 KiB.
const MOST_CHUNKS: u64 = 1 << 28;
/// Entries of a block.
pub const ENTRIES: u32 = 256;

/// The lengths of a memory and of its chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    memory_len: u64,
    chunk_len: u32,
}

impl Geometry {
    /// Checks that a pack can have these lengths.
    ///
    /// # Errors
    /// The fault, in words.
    pub fn new(memory_len: u64, chunk_len: u32) -> Result<Self, String> {
        if !CHUNK_LENS.contains(&chunk_len) || !chunk_len.is_power_of_two() {
            return Err(format!(
                "a chunk cannot have {chunk_len} bytes: its length must be a power of two from 4 KiB to 2 MiB"
            ));
        }
        if memory_len == 0 || memory_len.div_ceil(chunk_len.into()) > MOST_CHUNKS {
            return Err(format!(
                "{memory_len} bytes of memory cannot be divided into chunks of {chunk_len} bytes: a pack \
                 has 1 to {MOST_CHUNKS} chunks"
            ));
        }
        Ok(Self { memory_len, chunk_len })
    }

    /// Bytes of the memory.
    #[must_use]
    pub fn memory_len(&self) -> u64 {
        self.memory_len
    }

    /// Bytes of a chunk. The last one may be shorter.
    #[must_use]
    pub fn chunk_len(&self) -> u32 {
        self.chunk_len
    }

    /// Number of chunks.
    #[must_use]
    pub fn chunks(&self) -> u32 {
        self.memory_len.div_ceil(self.chunk_len.into()) as u32 // at most MOST_CHUNKS
    }

    /// Memory range of a chunk.
    #[must_use]
    pub fn range(&self, chunk: u32) -> Range<u64> {
        let len = u64::from(self.chunk_len);
        let start = u64::from(chunk) * len;
        start..(start + len).min(self.memory_len)
    }

    /// Bytes of one chunk.
    #[must_use]
    pub fn len_of(&self, chunk: u32) -> usize {
        let range = self.range(chunk);
        (range.end - range.start) as usize
    }

    /// Number of blocks of the index.
    pub(crate) fn blocks(&self) -> u32 {
        self.chunks().div_ceil(ENTRIES)
    }

    /// Number of a block's entries that stand for chunks.
    pub(crate) fn entries_of(&self, block: u32) -> u32 {
        (self.chunks() - block * ENTRIES).min(ENTRIES)
    }

    /// Chunks that a thread processes together: 1 MiB, so that threads seldom contend.
    pub(crate) fn run(&self) -> u32 {
        ((1 << 20) / self.chunk_len).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_chunk_is_the_remainder() {
        let geometry = Geometry::new(5 << 20, 2 << 20).unwrap();
        assert_eq!((geometry.chunks(), geometry.blocks(), geometry.entries_of(0)), (3, 1, 3));
        assert_eq!((geometry.range(0), geometry.range(2)), (0..2 << 20, 4 << 20..5 << 20));
        assert_eq!(geometry.len_of(2), 1 << 20);
        let geometry = Geometry::new(257 << 12, 4 << 10).unwrap();
        assert_eq!((geometry.blocks(), geometry.entries_of(0), geometry.entries_of(1)), (2, 256, 1));
    }

    #[test]
    fn impossible_geometry_is_refused() {
        for (memory, chunk) in [
            (1 << 20, 0),
            (1 << 20, 2 << 10),
            (1 << 20, 4 << 20),
            (1 << 20, 5000),
            (0, 4096),
            (1 << 62, 4096),
        ] {
            assert!(Geometry::new(memory, chunk).is_err(), "{memory} {chunk}");
        }
        Geometry::new(1 << 46, 256 << 10).unwrap();
    }
}
