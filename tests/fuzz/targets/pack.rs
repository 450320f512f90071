//! Fuzzes packed memory: any bytes, a pack with some bytes changed, and a forged pack with valid checksums.
//! Each is an error or the memory that was packed.
#![no_main]

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use volt_vmm::Progress;
use volt_vmm::internal::pack::forging::Forged;
use volt_vmm::internal::pack::{Compression, Decoder, Geometry, MemorySource, Pack, Packing, pack, walk};

const NAME: &str = "memory.pack";
const PAGE: usize = 4096;
// Length of an index entry, and of a block of the index.
const ENTRY: usize = 16;
const BLOCK: usize = 4096;

#[derive(Debug, Arbitrary)]
enum Input {
    Any(Vec<u8>),
    Damaged { pages: Vec<Page>, how: How, damage: Vec<Damage> },
    Forged { pages: u8, how: How, data: Vec<u8>, entries: Vec<Entry>, begins: Vec<u16>, len: Option<u64> },
}

#[derive(Debug, Arbitrary)]
enum Page {
    Zero,
    Of(Vec<u8>),
}

#[derive(Debug, Arbitrary)]
struct How {
    zstd: Option<u8>,
    chunk: u8,
    least_saving: u8,
}

#[derive(Debug, Arbitrary)]
enum Damage {
    Flip(u16, u8),
    /// Flips a byte near the end, where the index lies.
    FlipFromEnd(u16, u8),
    Cut(u16),
    Grow(u8),
}

#[derive(Debug, Arbitrary)]
enum Entry {
    Zero,
    /// An entry with a valid position and length.
    Right {
        kind: u8,
        len: u16,
        checksum: u64,
    },
    Same {
        of: u8,
        checksum: u64,
    },
    Any([u8; ENTRY]),
}

impl How {
    fn packing(&self) -> Packing {
        let compression = match self.zstd {
            None => Compression::Lz4,
            Some(level) => Compression::Zstd { level: 1 + i32::from(level % 6) },
        };
        Packing::with(compression, Some(self.chunk_len()), Some(self.least_saving % 101))
    }

    fn chunk_len(&self) -> u32 {
        4096 << (self.chunk % 5)
    }
}

struct Memory {
    bytes: Vec<u8>,
    all: Range<u64>,
}

impl MemorySource for Memory {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> volt_vmm::Result<()> {
        into.copy_from_slice(&self.bytes[offset as usize..][..into.len()]);
        Ok(())
    }

    fn populated(&self) -> &[Range<u64>] {
        std::slice::from_ref(&self.all)
    }
}

fn nameless() -> File {
    rustix::fs::memfd_create("pack", rustix::fs::MemfdFlags::CLOEXEC).expect("a file in memory").into()
}

/// Reads all memory of a pack. A chunk that fails to read must fail to verify, too.
fn content(bytes: &[u8]) -> volt_vmm::Result<Vec<u8>> {
    let file = nameless();
    file.write_all_at(bytes, 0).expect("a file in memory");
    let pack = Pack::open(file, Path::new(NAME))?;
    let read = read(&pack);
    let verified = walk::verify(&pack, &Progress::default());
    assert!(read.is_ok() || verified.is_err(), "{verified:?}");
    read
}

fn read(pack: &Pack) -> volt_vmm::Result<Vec<u8>> {
    let (mut all, mut decoder) = (Vec::new(), Decoder::new());
    let geometry = pack.geometry();
    // A file that claims a large memory of zeros may be valid.
    for chunk in 0..geometry.chunks().min(4096) {
        let mut into = vec![0xee; geometry.len_of(chunk)];
        pack.read_chunk(chunk, &mut into, &mut decoder)?;
        if all.len() < 1 << 24 {
            all.extend(into);
        }
    }
    Ok(all)
}

fn damaged(pages: &[Page], how: &How, damage: &[Damage]) {
    let mut bytes = Vec::new();
    for page in pages.iter().take(64) {
        match page {
            Page::Of(what) if !what.is_empty() => bytes.extend(what.iter().cycle().take(PAGE)),
            _ => bytes.resize(bytes.len() + PAGE, 0),
        }
    }
    if bytes.is_empty() {
        return;
    }
    let len = bytes.len() as u64;
    let memory = Memory { bytes, all: 0..len };
    let mut file = nameless();
    pack(&memory, len, &how.packing(), (&file, Path::new(NAME)), &Progress::default())
        .expect("a memory in order");
    let mut packed = Vec::new();
    file.read_to_end(&mut packed).expect("a file in memory");
    assert!(content(&packed).expect("a pack in order") == memory.bytes);
    for damage in damage {
        let len = packed.len().max(1);
        match *damage {
            Damage::Cut(at) => packed.truncate(usize::from(at) % len),
            Damage::Grow(more) => packed.resize(packed.len() + usize::from(more), more),
            Damage::Flip(at, by) => {
                packed.get_mut(usize::from(at) % len).into_iter().for_each(|byte| *byte ^= by);
            }
            Damage::FlipFromEnd(at, by) => {
                packed.get_mut(len - 1 - usize::from(at) % len).into_iter().for_each(|byte| *byte ^= by);
            }
        }
    }
    if let Ok(found) = content(&packed) {
        assert!(found == memory.bytes, "another memory");
    }
}

fn forged(pages: u8, how: &How, data: &[u8], entries: &[Entry], begins: &[u16], len: Option<u64>) {
    let Ok(geometry) = Geometry::new((u64::from(pages) + 1) << 12, how.chunk_len()) else { return };
    let mut index = vec![0; BLOCK];
    let mut end = 0;
    for (at, entry) in index.chunks_mut(ENTRY).zip(entries) {
        let mut fill = |place: u32, word: u32, checksum: u64| {
            at[..4].copy_from_slice(&place.to_le_bytes());
            at[4..8].copy_from_slice(&word.to_le_bytes());
            at[8..].copy_from_slice(&checksum.to_le_bytes());
        };
        match *entry {
            Entry::Zero => {}
            Entry::Right { kind, len, checksum } => {
                let left = (data.len() as u32).saturating_sub(end).min(how.chunk_len() - 1);
                let len = u32::from(len) % (left + 1);
                fill(end, u32::from(1 + kind % 3) << 24 | len, checksum);
                end += len;
            }
            Entry::Same { of, checksum } => fill(of.into(), 4 << 24, checksum),
            Entry::Any(bytes) => at.copy_from_slice(&bytes),
        }
    }
    let mut data = data.to_vec();
    data.resize(data.len().next_multiple_of(BLOCK), 0);
    let begins = begins.iter().copied().chain([0]).take(1).map(u64::from).collect();
    let forged = Forged { geometry, data, data_len: len.unwrap_or(end.into()), index, begins };
    let _ = content(&forged.bytes());
}

fuzz_target!(|input: Input| match &input {
    Input::Any(bytes) => drop(content(bytes)),
    Input::Damaged { pages, how, damage } => damaged(pages, how, damage),
    Input::Forged { pages, how, data, entries, begins, len } => {
        forged(*pages, how, data, entries, begins, *len);
    }
});
