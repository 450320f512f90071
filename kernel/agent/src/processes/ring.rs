//! The last output of a command, under a running offset.

use std::collections::VecDeque;

/// Bytes that a ring keeps at least, once a command has written them, with [`OVERHEAD`] for each chunk.
pub const KEPT: usize = 1 << 20;

/// Longest chunk.
const CHUNK: usize = 32 << 10;

/// Memory of a chunk beside its bytes. Output that changes its source with each byte has many chunks.
const OVERHEAD: usize = 64;

/// Source of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The standard output.
    Stdout,
    /// The standard error output.
    Stderr,
    /// The terminal.
    Pty,
}

/// Output of one source without a gap.
#[derive(Debug)]
struct Chunk {
    start: u64,
    source: Source,
    bytes: Vec<u8>,
}

impl Chunk {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    fn cost(&self) -> usize {
        self.bytes.len() + OVERHEAD
    }
}

/// A ring of output. Offsets count bytes of all sources together.
#[derive(Debug, Default)]
pub struct Ring {
    chunks: VecDeque<Chunk>,
    end: u64,
    cost: usize,
}

impl Ring {
    /// The offset of the first byte.
    pub fn start(&self) -> u64 {
        self.chunks.front().map_or(self.end, |chunk| chunk.start)
    }

    /// The offset after the last byte.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Memory in use.
    pub fn cost(&self) -> usize {
        self.cost
    }

    /// Adds output, and drops the oldest chunks.
    pub fn push(&mut self, source: Source, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = match self.chunks.back() {
                Some(last) if last.source == source => CHUNK - last.bytes.len(),
                _ => 0,
            };
            if room == 0 {
                self.chunks.push_back(Chunk { start: self.end, source, bytes: Vec::new() });
                self.cost += OVERHEAD;
            }
            let fits = bytes.len().min(if room == 0 { CHUNK } else { room });
            if let Some(last) = self.chunks.back_mut() {
                last.bytes.extend_from_slice(&bytes[..fits]);
            }
            self.end += fits as u64;
            self.cost += fits;
            bytes = &bytes[fits..];
        }
        while let Some(oldest) = self.chunks.front().map(Chunk::cost)
            && self.cost - oldest >= KEPT
        {
            self.cost -= oldest;
            self.chunks.pop_front();
        }
    }

    /// Frees memory that later output would have taken.
    pub fn shrink(&mut self) {
        if let Some(last) = self.chunks.back_mut() {
            last.bytes.shrink_to_fit();
        }
        self.chunks.shrink_to_fit();
    }

    /// The output from an offset to the end of its chunk. Begins later if the ring lost that offset.
    pub fn read(&self, offset: u64) -> Option<(Source, &[u8])> {
        let chunk = self.chunks.get(self.chunks.partition_point(|chunk| chunk.end() <= offset))?;
        Some((chunk.source, &chunk.bytes[offset.saturating_sub(chunk.start) as usize..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_read_from_any_offset() {
        let mut ring = Ring::default();
        ring.push(Source::Stdout, b"one");
        ring.push(Source::Stdout, b"two");
        ring.push(Source::Stderr, b"bad");
        assert_eq!(ring.read(0), Some((Source::Stdout, &b"onetwo"[..])));
        assert_eq!(ring.read(4), Some((Source::Stdout, &b"wo"[..])));
        assert_eq!(ring.read(7), Some((Source::Stderr, &b"ad"[..])));
        assert_eq!(ring.read(9), None);
    }

    #[test]
    fn full_ring_drops_the_oldest_output() {
        let mut ring = Ring::default();
        for number in 0..40_u8 {
            ring.push(Source::Pty, &vec![number; 50_000]);
        }
        assert_eq!(ring.end(), 2_000_000);
        assert!((KEPT..KEPT + CHUNK + OVERHEAD).contains(&ring.cost()), "{}", ring.cost());
        let (_, first) = ring.read(0).unwrap();
        assert_eq!(u64::from(first[0]), ring.start() / 50_000);
        let mut offset = ring.start();
        while let Some((_, bytes)) = ring.read(offset) {
            offset += bytes.len() as u64;
        }
        assert_eq!(offset, ring.end());
    }

    #[test]
    fn chunks_of_single_bytes_are_charged_with_their_overhead() {
        let mut ring = Ring::default();
        for number in 0..100_000 {
            ring.push(if number % 2 == 0 { Source::Stdout } else { Source::Stderr }, b"x");
        }
        assert!(ring.chunks.len() <= KEPT / OVERHEAD, "{} chunks", ring.chunks.len());
        assert_eq!((ring.end(), ring.start()), (100_000, 100_000 - ring.chunks.len() as u64));
        assert_eq!(ring.read(0).unwrap().1.len(), 1);
    }
}
