//! Damaged, truncated and forged packs: reading one gives an error or the original content, never another.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::checksum::ByteDigest;
use super::codec::Compression;
use super::footer;
use super::footer::Footer;
use super::forging::Forged;
use super::geometry::Geometry;
use super::index::BLOCK;
use super::reader::Pack;
use super::testing::{BOTH, NAME, TestMemory, content, file_of, noise, open, packed, packing};
use super::walk::verify;
use crate::progress::Progress;
use crate::testing::{alone, peak_memory};

/// A memory with chunks of every kind: zero, compressed, raw, a repeat.
fn memory() -> Vec<u8> {
    let text: Vec<u8> = b"all work and no play ".iter().copied().cycle().take(4096).collect();
    [text.clone(), vec![0; 4096], noise(1, 4096), text, noise(1, 4096), noise(2, 100), vec![0; 3996]].concat()
}

fn small(compression: Compression) -> Vec<u8> {
    packed(&TestMemory::of(memory()), &packing(compression, 4096))
}

/// Everything that a pack yields: the content that it claims for its memory.
fn all_of(bytes: &[u8]) -> crate::error::Result<Vec<u8>> {
    open(bytes).and_then(|pack| content(&pack))
}

#[test]
fn flipped_byte_is_noticed() {
    for compression in BOTH {
        let good = small(compression);
        let pack = open(&good).unwrap();
        let mut noticed = 0;
        let (data, index) = (pack.data_len() as usize, good.len() - pack.index_len() as usize);
        for at in 0..good.len() {
            let flip = 1 << (at % 8);
            let mut bad = good.clone();
            bad[at] ^= flip;
            let opened = open(&bad).map_err(|error| error.to_string());
            let found = opened
                .as_ref()
                .map_err(String::clone)
                .and_then(|pack| content(pack).map_err(|error| error.to_string()));
            let verified = opened
                .and_then(|pack| verify(&pack, &Progress::default()).map_err(|error| error.to_string()));
            match at {
                // Some bits of a zstd frame or an LZ4 block decode to the same bytes. Only the digest of the
                // stored bytes detects them.
                _ if at < data => {
                    assert!(found.as_ref().map_or(true, |found| *found == memory()), "byte {at}, {flip:#x}");
                    assert!(verified.is_err(), "byte {at}, {flip:#x}");
                    noticed += u32::from(found.is_err());
                }
                _ if at < index => {
                    assert!(found.unwrap() == memory(), "byte {at} stands for nothing");
                    assert!(verified.is_err(), "but it is verified: byte {at}, {flip:#x}");
                }
                _ => assert!(found.is_err() && verified.is_err(), "byte {at}, {flip:#x}"),
            }
        }
        assert!(noticed as usize > data * 95 / 100, "{noticed} of {data}");
    }
}

#[test]
fn truncated_or_grown_pack_is_refused() {
    for compression in BOTH {
        let good = small(compression);
        for len in 0..good.len() {
            let error = open(&good[..len]).map(drop).unwrap_err().to_string();
            assert!(error.starts_with("snapshot /s/memory.pack: is cut off or"), "{len}: {error}");
            assert!(open(&good[good.len() - len..]).is_err(), "{len} from the end");
        }
        for more in [1, 4096] {
            assert!(open(&[&good[..], &vec![0; more]].concat()).is_err());
            assert!(open(&[&vec![0; more], &good[..]].concat()).is_err());
        }
    }
}

impl Forged {
    fn of(good: &[u8]) -> Self {
        let pack = open(good).unwrap();
        let index = good.len() - pack.index_len() as usize;
        let blocks = pack.geometry().blocks() as usize;
        Self {
            geometry: pack.geometry(),
            data: good[..index].to_vec(),
            index: good[index..index + blocks * BLOCK].to_vec(),
            begins: vec![0; blocks],
            data_len: pack.data_len(),
        }
    }

    fn entry(&mut self, chunk: usize) -> &mut [u8] {
        &mut self.index[chunk * 16..][..16]
    }

    fn stored(&mut self, chunk: usize, (place, kind, len): (u32, u8, u32)) {
        self.entry(chunk)[..4].copy_from_slice(&place.to_le_bytes());
        self.entry(chunk)[4..8].copy_from_slice(&(u32::from(kind) << 24 | len).to_le_bytes());
    }

    fn problem(&self) -> String {
        all_of(&self.bytes()).map(drop).unwrap_err().to_string()
    }
}

/// The stored length of [`memory`]'s first chunk.
fn first_len(forged: &mut Forged) -> u32 {
    u32::from_le_bytes(forged.entry(0)[4..8].try_into().unwrap()) & 0xff_ffff
}

#[test]
fn forged_index_is_refused() {
    for (compression, kind) in [(Compression::Lz4, 2), (Compression::Zstd { level: 3 }, 3)] {
        let good = small(compression);
        let forged = |change: &dyn Fn(&mut Forged, u32)| {
            let mut forged = Forged::of(&good);
            let len = first_len(&mut forged);
            change(&mut forged, len);
            forged.problem()
        };
        assert!(all_of(&Forged::of(&good).bytes()).unwrap() == memory(), "unchanged, it is as it was");

        let impossible = "has an invalid index entry for chunk";
        // Outside the file, and into another chunk: chunk 2 is raw and follows chunk 0.
        for place in [u32::MAX, 1 << 30, 0, 1] {
            assert!(forged(&|f, _| f.stored(2, (place, 1, 4096))).contains(impossible), "{place}");
        }
        // Lengths that no chunk can have.
        for len in [0, 4096, 4097, 0xff_ffff] {
            assert!(forged(&|f, _| f.stored(0, (0, kind, len))).contains(impossible), "{len}");
        }
        for len in [0, 4095, 0xff_ffff] {
            assert!(forged(&|f, first| f.stored(2, (first, 1, len))).contains(impossible), "{len}");
        }
        // The chunk takes a byte of the next one, which then begins elsewhere than its entry says.
        assert!(forged(&|f, first| f.stored(0, (0, kind, first + 1))).contains(impossible));
        // More or less data than the file has.
        assert!(forged(&|f, _| f.entry(5).fill(0)).contains("has an inconsistent index"));
        // Unknown kinds, and zero entries with other bytes.
        for kind in [5, 0x80, 0xff] {
            assert!(forged(&|f, first| f.stored(0, (0, kind, first))).contains(impossible));
        }
        assert!(forged(&|f, _| f.entry(1)[15] = 1).contains(impossible));
        // Repeats of a later chunk, of the chunk itself, of a zero chunk, of a repeat.
        for (of, words) in
            [(5, impossible), (3, impossible), (1, "which does not match it"), (u32::MAX, impossible)]
        {
            assert!(forged(&|f, _| f.stored(3, (of, 4, 0))).contains(words), "{of}");
        }
        assert!(forged(&|f, _| f.stored(4, (3, 4, 0))).contains("which does not match it"));
        // A repeat whose checksum is not that of the repeated chunk.
        assert!(forged(&|f, _| f.entry(3)[8] ^= 1).contains("which does not match it"));
        // An entry for a chunk beyond the last.
        assert!(forged(&|f, _| f.stored(6, (0, 4, 0))).contains(impossible));
        // The other codec's number: other content.
        assert!(forged(&|f, first| f.stored(0, (0, 5 - kind, first))).contains("is damaged in chunk 0"));
        assert!(forged(&|f, _| f.entry(0)[8] ^= 1).contains(
            "is damaged in chunk 0 (guest memory at 0x0..0x1000): its content does not match its checksum"
        ));
        // Forged items of the table.
        assert!(forged(&|f, _| f.begins[0] = 1).contains("out of order"));
        assert!(forged(&|f, _| f.begins[0] = u64::MAX).contains("out of order"));
    }
}

#[test]
fn forged_chunk_length_is_refused() {
    // A frame of one kilobyte, and one of 64, in place of one of four.
    for (compression, kind) in [(Compression::Lz4, 2_u8), (Compression::Zstd { level: 3 }, 3)] {
        for len in [1024, 65_536] {
            let mut encoder = super::codec::Encoder::new(compression, 65_536, 0).unwrap();
            let content = vec![7; len];
            let mut bytes = vec![0; encoder.room()];
            let (_, stored) = encoder.encode(&content, &mut bytes);
            bytes.truncate(stored as usize);
            let mut forged = Forged::of(&packed(&TestMemory::of(vec![7; 4096]), &packing(compression, 4096)));
            forged.data.clone_from(&bytes);
            forged.data.resize(4096, 0);
            forged.data_len = bytes.len() as u64;
            forged.stored(0, (0, kind, bytes.len() as u32));
            let problem = forged.problem();
            assert!(problem.contains("is damaged in chunk 0"), "{problem}");
        }
    }
}

#[test]
fn overlapping_or_swapped_blocks_are_refused() {
    let pages: Vec<u8> = (0..600).flat_map(|seed| noise(seed, 4096)).collect();
    let good = packed(&TestMemory::of(pages.clone()), &packing(Compression::Lz4, 4096));
    let mut forged = Forged::of(&good);
    forged.begins = vec![0, 256 << 12, 512 << 12];
    assert!(all_of(&forged.bytes()).unwrap() == pages);
    for begins in [[0, 255 << 12, 512 << 12], [0, 512 << 12, 512 << 12], [0, 256 << 12, 511 << 12]] {
        forged.begins = begins.to_vec();
        assert!(forged.problem().contains("has an inconsistent index"));
    }
    for begins in [[0, 513 << 12, 512 << 12], [0, 256 << 12, 601 << 12], [4096, 256 << 12, 512 << 12]] {
        forged.begins = begins.to_vec();
        assert!(forged.problem().contains("out of order"));
    }
    // Two blocks of the same pack, each intact.
    let mut swapped = good.clone();
    let index = good.len() - open(&good).unwrap().index_len() as usize;
    swapped.copy_within(index + BLOCK..index + 2 * BLOCK, index);
    assert!(
        all_of(&swapped).unwrap_err().to_string().contains("the checksum of block 0 of its index is wrong")
    );
}

#[test]
fn forged_footer_allocates_nothing() {
    // A small file's footer that claims 16 TiB in chunks of 64 KiB, whose index has 4 GiB.
    let geometry = Geometry::new(16 << 40, 64 << 10).unwrap();
    let footer = Footer::new(geometry, 0, 0, &[]);
    let problem = open(&footer.to_bytes()).map(drop).unwrap_err().to_string();
    assert!(problem.contains(&format!("its length of {} bytes", footer::LEN)), "{problem}");
}

#[test]
fn first_bad_chunk_is_named() {
    let pages: Vec<u8> = (0..4000).flat_map(|seed| noise(seed, 4096)).collect();
    let mut bytes = packed(&TestMemory::of(pages), &packing(Compression::Lz4, 4096));
    for chunk in [3999, 1700, 612, 611, 2100] {
        bytes[chunk << 12] ^= 4;
    }
    for _ in 0..20 {
        let problem = verify(&open(&bytes).unwrap(), &Progress::default()).unwrap_err().to_string();
        assert!(problem.contains("is damaged in chunk 611 "), "{problem}");
    }
}

/// A pack that is a hole except for its footer: 2^28 chunks, whose index has 4 GiB.
fn hole() -> File {
    let geometry = Geometry::new(1 << 40, 4 << 10).unwrap();
    let mut footer = Footer::new(geometry, 0, 0, &[]);
    let (mut digest, zeros) = (ByteDigest::default(), vec![0; footer.table_len()]);
    digest.add(&zeros);
    footer.digest = footer.digest_after(digest);
    let file = file_of(&[]);
    file.write_all_at(&footer.to_bytes(), footer.table_at() + footer.table_len() as u64).unwrap();
    file
}

#[test]
fn pack_that_is_a_hole_takes_no_memory() {
    if !alone("snapshot::format::pack::bad_tests::pack_that_is_a_hole_takes_no_memory") {
        return;
    }
    // The memory of the forgery itself is allocated before, and the code is mapped.
    let file = hole();
    let small = packed(&TestMemory::of(noise(9, 64 << 10)), &packing(BOTH[0], 64 << 10));
    verify(&open(&small).unwrap(), &Progress::default()).unwrap();
    let before = peak_memory();
    let pack = Pack::open(file, Path::new(NAME)).unwrap();
    let problem = verify(&pack, &Progress::default()).unwrap_err().to_string();
    assert!(problem.contains("the checksum of block 0 of its index is wrong"), "{problem}");
    // A reader that comes to every block takes no more.
    (0..pack.geometry().chunks()).step_by(256).for_each(|chunk| assert!(pack.kind(chunk).is_err()));
    let taken = peak_memory() - before;
    assert!(taken < 4 << 20, "{taken} bytes");
}

#[test]
fn verification_counts_stored_bytes_and_is_cancelled_among_them() {
    let len = 4_u64 << 20;
    let bytes = packed(&TestMemory::of(noise(9, len as usize)), &packing(BOTH[0], 64 << 10));
    let pack = open(&bytes).unwrap();
    let progress = Progress::default();
    verify(&pack, &progress).unwrap();
    assert_eq!(progress.done(), len + pack.verified_len());
    let progress = Progress::cancelling_at(len + 1);
    assert!(matches!(verify(&pack, &progress), Err(crate::error::Error::Cancelled)));
    assert!(progress.done() < len + pack.verified_len(), "{progress:?}");
}
