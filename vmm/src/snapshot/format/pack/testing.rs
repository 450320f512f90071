//! Memories, and packs of them in files without a name, for the tests of packs.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::codec::{Compression, Decoder};
use super::reader::Pack;
use super::writer::{Packing, pack};
use crate::error::Result;
use crate::progress::Progress;
use crate::snapshot::format::source::MemorySource;

pub const NAME: &str = "/s/memory.pack";

/// A memory of bytes, as a source.
pub struct TestMemory {
    pub bytes: Vec<u8>,
    pub populated: Vec<Range<u64>>,
}

impl TestMemory {
    pub fn of(bytes: Vec<u8>) -> Self {
        let all = 0..bytes.len() as u64;
        Self { bytes, populated: vec![all] }
    }
}

impl MemorySource for TestMemory {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        into.copy_from_slice(&self.bytes[offset as usize..][..into.len()]);
        Ok(())
    }

    fn populated(&self) -> &[Range<u64>] {
        &self.populated
    }
}

pub fn packing(compression: Compression, chunk_len: u32) -> Packing {
    Packing { chunk_len, ..Packing::new(compression) }
}

pub const BOTH: [Compression; 2] = [Compression::Lz4, Compression::Zstd { level: 3 }];

fn nameless() -> File {
    rustix::fs::memfd_create("pack", rustix::fs::MemfdFlags::CLOEXEC).unwrap().into()
}

/// A file with these bytes.
pub fn file_of(bytes: &[u8]) -> File {
    let file = nameless();
    file.write_all_at(bytes, 0).unwrap();
    file
}

/// The bytes of a pack of this memory.
pub fn packed(source: &TestMemory, packing: &Packing) -> Vec<u8> {
    let mut file = nameless();
    pack(source, source.bytes.len() as u64, packing, (&file, Path::new(NAME)), &Progress::default()).unwrap();
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

/// Opens a pack of these bytes.
pub fn open(bytes: &[u8]) -> Result<Pack> {
    Pack::open(file_of(bytes), Path::new(NAME))
}

/// The whole memory, chunk by chunk.
pub fn content(pack: &Pack) -> Result<Vec<u8>> {
    let (mut all, mut decoder) = (Vec::new(), Decoder::new());
    for chunk in 0..pack.geometry().chunks() {
        let mut into = vec![0xee; pack.geometry().len_of(chunk)];
        pack.read_chunk(chunk, &mut into, &mut decoder)?;
        all.extend(into);
    }
    Ok(all)
}

/// Reproducible bytes that do not compress.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}
