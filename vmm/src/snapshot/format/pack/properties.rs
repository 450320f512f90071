//! Property tests: packing and unpacking returns the same memory, with every codec, several chunk sizes, one
//! thread and several.

use std::num::NonZero;
use std::path::Path;

use proptest::prelude::*;

use super::codec::{Compression, Encoding};
use super::reader::ChunkKind;
use super::source::Repack;
use super::testing::{BOTH, NAME, TestMemory, content, file_of, noise, open, packed, packing};
use super::walk::{unpack, verify};
use super::writer::{Packing, pack};
use crate::progress::Progress;

/// A page of a memory.
#[derive(Clone, Debug)]
enum Page {
    Zero,
    Noise(u64),
    Text(u8),
    Repeat(Vec<u8>),
    AlmostZero(u16),
}

impl Page {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Zero => vec![0; 4096],
            Self::Noise(seed) => noise(*seed, 4096),
            Self::Text(first) => {
                let words = (0_u16..)
                    .flat_map(|n| format!("{} bottles of beer, ", n + u16::from(*first)).into_bytes());
                words.take(4096).collect()
            }
            Self::Repeat(what) => what.iter().copied().cycle().take(4096).collect(),
            Self::AlmostZero(at) => {
                let mut page = vec![0; 4096];
                page[usize::from(*at) % 4096] = 1;
                page
            }
        }
    }
}

fn page() -> impl Strategy<Value = Page> {
    prop_oneof![
        3 => Just(Page::Zero),
        2 => (0..6_u64).prop_map(Page::Noise), // few, so that some are equal
        2 => (0..3_u8).prop_map(Page::Text),
        1 => proptest::collection::vec(any::<u8>(), 1..9).prop_map(Page::Repeat),
        1 => any::<u16>().prop_map(Page::AlmostZero),
    ]
}

/// A memory's pages, some zero pages among the populated ones.
fn memory() -> impl Strategy<Value = Vec<Page>> {
    // Repeated pages, so that larger chunks can be equal too.
    proptest::collection::vec((page(), 1..20_usize), 1..12)
        .prop_map(|runs| runs.into_iter().flat_map(|(page, count)| vec![page; count]).collect())
}

fn source(pages: &[Page]) -> TestMemory {
    let mut populated: Vec<std::ops::Range<u64>> = Vec::new();
    for (at, page) in (0_u64..).step_by(4096).zip(pages) {
        match (page, populated.last_mut()) {
            (Page::Zero, _) if at % 8192 == 0 => {} // the other zeros are found by looking
            (_, Some(last)) if last.end == at => last.end += 4096,
            _ => populated.push(at..at + 4096),
        }
    }
    TestMemory { bytes: pages.iter().flat_map(Page::bytes).collect(), populated }
}

fn any_packing() -> impl Strategy<Value = Packing> {
    let compression = prop_oneof![
        Just(Compression::Lz4),
        Just(Compression::Zstd { level: 1 }),
        Just(Compression::Zstd { level: 3 }),
        Just(Compression::Zstd { level: 19 }),
    ];
    let chunk_len =
        prop_oneof![Just(4 << 10), Just(16 << 10), Just(64 << 10), Just(128 << 10), Just(2 << 20)];
    (compression, chunk_len, prop_oneof![Just(0), Just(5), Just(60), Just(100)], 1..4_usize).prop_map(
        |(compression, chunk_len, least_saving, threads)| Packing {
            compression,
            chunk_len,
            least_saving,
            threads: NonZero::new(threads),
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn unpacked_memory_equals_the_packed(pages in memory(), packing in any_packing()) {
        let source = source(&pages);
        let bytes = packed(&source, &packing);
        let first = open(&bytes).unwrap();
        prop_assert!(content(&first).unwrap() == source.bytes);
        verify(&first, &Progress::default()).unwrap();

        // Unpacking into a file gives the same memory.
        let file = file_of(b"");
        unpack(&first, (&file, Path::new("/s/memory.snap")), &Progress::default()).unwrap();
        let mut out = vec![0xee; source.bytes.len()];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut out, 0).unwrap();
        prop_assert!(out == source.bytes);

        // The number of threads changes nothing.
        let other = Packing { threads: NonZero::new(1 + packing.threads.unwrap().get() % 3), ..packing };
        prop_assert!(packed(&source, &other) == bytes);
    }

    #[test]
    fn pack_is_converted_to_another_packing(pages in memory(), [from, to] in [any_packing(), any_packing()]) {
        let source = source(&pages);
        let first = open(&packed(&source, &from)).unwrap();
        let file = file_of(b"");
        let repack = Repack::of(&first).unwrap();
        pack(&repack, first.memory_len(), &to, (&file, Path::new(NAME)), &Progress::default()).unwrap();
        let second = super::reader::Pack::open(file, Path::new(NAME)).unwrap();
        prop_assert!(content(&second).unwrap() == source.bytes);
        prop_assert_eq!(second.digest(), open(&packed(&source, &to)).unwrap().digest());
    }
}

#[test]
fn zero_chunks_are_omitted_and_equal_chunks_stored_once() {
    for compression in BOTH {
        let text = Page::Text(1).bytes();
        let pages = [
            vec![0; 4096],
            text.clone(),
            noise(1, 4096),
            vec![0; 4096],
            text,
            noise(1, 4096),
            noise(2, 4096),
        ];
        let pack = open(&packed(&TestMemory::of(pages.concat()), &packing(compression, 4096))).unwrap();
        let kinds: Vec<_> = (0..7).map(|chunk| pack.kind(chunk).unwrap()).collect();
        assert_eq!((kinds[0], kinds[3]), (ChunkKind::Zero, ChunkKind::Zero));
        let stored = |kind: ChunkKind| match kind {
            ChunkKind::Stored { encoding, len, same_as } => (encoding, len, same_as),
            ChunkKind::Zero => panic!("stored"),
        };
        let (encoding, len, _) = stored(kinds[1]);
        assert!(encoding != Encoding::Raw && len < 2000, "{len}");
        assert_eq!(stored(kinds[2]), (Encoding::Raw, 4096, None));
        assert_eq!(stored(kinds[4]), (encoding, len, Some(1)));
        assert_eq!(stored(kinds[5]), (Encoding::Raw, 4096, Some(2)));
        assert_eq!(stored(kinds[6]), (Encoding::Raw, 4096, None));
        assert_eq!(pack.data_len(), u64::from(len) + 2 * 4096);
    }
}

#[test]
fn index_of_16_gib_is_below_a_twentieth_of_a_percent() {
    let source = TestMemory { bytes: Vec::new(), populated: Vec::new() };
    let file = file_of(b"");
    let packing = packing(Compression::Lz4, 32 << 10);
    pack(&source, 16 << 30, &packing, (&file, Path::new(NAME)), &Progress::default()).unwrap();
    let len = file.metadata().unwrap().len();
    let pack = super::reader::Pack::open(file, Path::new(NAME)).unwrap();
    assert_eq!((pack.index_len(), pack.data_len()), (len, 0));
    assert!(len * 2000 < 16 << 30, "{len}");
    assert_eq!(pack.kind((16 << 15) - 1).unwrap(), ChunkKind::Zero);
}

#[test]
fn threads_read_one_pack_at_once() {
    let source = TestMemory::of((0..64).flat_map(|seed| Page::Text(seed).bytes()).collect());
    let pack = open(&packed(&source, &packing(Compression::Zstd { level: 3 }, 4096))).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert!(content(&pack).unwrap() == source.bytes));
        }
    });
}

#[test]
fn unreadable_source_fails_the_packing() {
    struct Broken;
    impl crate::snapshot::format::source::MemorySource for Broken {
        fn read_at(&self, offset: u64, into: &mut [u8]) -> crate::error::Result<()> {
            if offset >= 40 << 20 {
                return Err(crate::error::Error::host("read this", std::io::Error::other("made to fail")));
            }
            into.fill(7);
            Ok(())
        }
        fn populated(&self) -> &[std::ops::Range<u64>] {
            const ALL: std::ops::Range<u64> = 0..64 << 20;
            &[ALL]
        }
    }
    let file = file_of(b"");
    let error = pack(
        &Broken,
        64 << 20,
        &Packing::new(Compression::Lz4),
        (&file, Path::new(NAME)),
        &Progress::default(),
    )
    .unwrap_err();
    assert_eq!(crate::error::report(&error), "cannot read this: made to fail");
}
