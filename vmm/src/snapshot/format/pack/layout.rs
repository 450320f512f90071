//! Places chunks in a pack, in their order. The result depends on the memory alone, not on the order in which
//! threads finish.

use std::collections::HashMap;
use std::sync::Mutex;

use super::checksum;
use super::checksum::ByteDigest;
use super::codec::{Encoder, Encoding};
use super::geometry::Geometry;
use super::index::IndexBuilder;
use super::source::read;
use crate::error::Result;
use crate::snapshot::format::holes::is_zero;
use crate::snapshot::format::source::MemorySource;
use crate::sync::lock;

/// The first chunk with each checksum.
pub type FirstChunks = Mutex<HashMap<u64, u32>>;

/// The encoded chunks of a run.
#[derive(Debug)]
pub struct PackedRun {
    /// The stored chunks one after another, and unused space.
    bytes: Vec<u8>,
    chunks: Vec<PackedChunk>,
}

/// Buffers of runs that were written, for reuse: faulting in fresh memory costs more than copying into it.
pub type SpareBuffers = Mutex<Vec<Vec<u8>>>;

#[derive(Debug)]
enum PackedChunk {
    Zero,
    Same { of: u32, checksum: u64 },
    Stored { encoding: Encoding, len: u32, checksum: u64 },
}

/// Encodes runs, on one thread.
pub struct RunPacker<'a> {
    pub source: &'a dyn MemorySource,
    pub geometry: Geometry,
    pub seen: &'a FirstChunks,
    pub spare: &'a SpareBuffers,
    pub encoder: Encoder,
    pub chunk: Vec<u8>,
    pub other: Vec<u8>,
}

impl RunPacker<'_> {
    /// Encodes the run of these chunks.
    pub fn make(&mut self, chunks: std::ops::Range<u32>) -> Result<PackedRun> {
        let (mut run, mut filled) = (self.empty_run(), 0);
        for chunk in chunks {
            let range = self.geometry.range(chunk);
            self.chunk.resize(self.geometry.len_of(chunk), 0);
            if !read(self.source, range.start, &mut self.chunk)? || is_zero(&self.chunk) {
                run.chunks.push(PackedChunk::Zero);
                continue;
            }
            let checksum = checksum::of(&self.chunk);
            let earlier = lock(self.seen).get(&checksum).copied();
            if let Some(of) = earlier
                && self.is_same(of)?
            {
                run.chunks.push(PackedChunk::Same { of, checksum });
                continue;
            }
            let (encoding, len) = self.encoder.encode(&self.chunk, &mut run.bytes[filled..]);
            run.chunks.push(PackedChunk::Stored { encoding, len, checksum });
            filled += len as usize;
        }
        Ok(run)
    }

    fn empty_run(&self) -> PackedRun {
        // A chunk is never stored in more bytes than its length, but a codec needs more space than that.
        let chunks = self.geometry.run() as usize * self.geometry.chunk_len() as usize;
        let room = || vec![0; chunks + self.encoder.room()];
        let spare = lock(self.spare).pop();
        PackedRun {
            bytes: spare.unwrap_or_else(room),
            chunks: Vec::with_capacity(self.geometry.run() as usize),
        }
    }

    fn is_same(&mut self, of: u32) -> Result<bool> {
        self.other.resize(self.geometry.len_of(of), 0);
        Ok(read(self.source, self.geometry.range(of).start, &mut self.other)? && self.other == self.chunk)
    }
}

/// The places of all runs so far.
pub struct PackLayout<'a> {
    pub source: &'a dyn MemorySource,
    pub geometry: Geometry,
    pub seen: &'a FirstChunks,
    pub index: IndexBuilder,
    /// Digest of all placed bytes.
    pub stored: ByteDigest,
}

impl PackLayout<'_> {
    /// Places the next run, whose first chunk is `first`. Returns its buffer, and the number of bytes to
    /// append to the pack.
    pub fn place(&mut self, first: u32, run: PackedRun) -> Result<(Vec<u8>, usize)> {
        let PackedRun { mut bytes, chunks } = run;
        let (mut from, mut kept) = (0, 0);
        for (chunk, made) in (first..).zip(chunks) {
            match made {
                PackedChunk::Zero => self.index.zero(),
                PackedChunk::Same { of, checksum } => self.index.same(of, checksum),
                PackedChunk::Stored { encoding, len, checksum } => {
                    let end = from + len as usize;
                    match self.earlier(chunk, checksum)? {
                        // The earlier chunk was not placed yet when this one was encoded.
                        Some(of) => self.index.same(of, checksum),
                        None => {
                            self.index.stored(encoding, len, checksum);
                            // Bytes before the first repeat stay in place. musl's memmove would copy them
                            // onto themselves, backwards and one at a time.
                            if kept < from {
                                bytes.copy_within(from..end, kept);
                            }
                            kept += len as usize;
                        }
                    }
                    from = end;
                }
            }
        }
        Ok((bytes, kept))
    }

    /// The earlier chunk with the same content, if there is one. Otherwise remembers this chunk for later
    /// ones.
    fn earlier(&mut self, chunk: u32, checksum: u64) -> Result<Option<u32>> {
        let of = *lock(self.seen).entry(checksum).or_insert(chunk);
        if of == chunk || self.geometry.len_of(of) != self.geometry.len_of(chunk) {
            return Ok(None);
        }
        let content = |chunk| {
            let mut bytes = vec![0; self.geometry.len_of(chunk)];
            read(self.source, self.geometry.range(chunk).start, &mut bytes).map(|_| bytes)
        };
        Ok((content(of)? == content(chunk)?).then_some(of))
    }
}
