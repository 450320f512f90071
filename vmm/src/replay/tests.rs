//! Every strategy prepares the snapshot's memory, and each page is touched.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use vm_memory::{Bytes, GuestAddress};

use super::strategies;
use super::strategies::PreparedMemory;
use super::subject::ReplaySubject;
use super::{StrategySamples, replay_once};
use crate::memory::PAGE;
use crate::memory::base::OverlayPages;
use crate::memory::files::memfd::fresh;
use crate::memory::page_set::PageSet;
use crate::snapshot::format::pack::testing;
use crate::snapshot::format::pack::testing::packing;
use crate::snapshot::opened::memory::{Packed, SnapshotMemory};
use crate::snapshot::{Compression, WorkingSet};

const LEN: u64 = 2 << 20;
const CHUNK: u32 = 64 << 10;

/// Returns the first word of a page. Every second chunk of the base is zeros, and some pages lie over the
/// base.
fn word(page: u64, with_over: bool) -> u64 {
    match page {
        _ if with_over && lies_over(page) => page | 1 << 63,
        _ if is_zero(page) => 0,
        _ => page | 1 << 62,
    }
}

fn is_zero(page: u64) -> bool {
    (page / u64::from(CHUNK)).is_multiple_of(2)
}

/// Long runs, which are mapped, and single pages, which are copied.
fn lies_over(page: u64) -> bool {
    (100 * PAGE..140 * PAGE).contains(&page) || page.is_multiple_of(37 * PAGE)
}

fn pages() -> impl Iterator<Item = u64> {
    (0..LEN).step_by(PAGE as usize)
}

/// Makes a file with the wanted pages, and holes.
fn file(wanted: impl Fn(u64) -> bool, with_over: bool) -> File {
    let file = fresh(LEN).unwrap();
    for page in pages().filter(|page| wanted(*page)) {
        file.write_all_at(&word(page, with_over).to_le_bytes(), page).unwrap();
    }
    file
}

fn raw() -> SnapshotMemory {
    SnapshotMemory::Raw(Arc::new(file(|page| !is_zero(page), false)), PathBuf::from("/s/memory.snap"))
}

fn packed() -> SnapshotMemory {
    let mut bytes = vec![0; LEN as usize];
    for page in pages() {
        bytes[page as usize..][..8].copy_from_slice(&word(page, false).to_le_bytes());
    }
    let bytes = testing::packed(&testing::TestMemory::of(bytes), &packing(Compression::Lz4, CHUNK));
    SnapshotMemory::Packed(Packed::of(Arc::new(testing::open(&bytes).unwrap())))
}

fn over() -> OverlayPages {
    let mut set = PageSet::none(LEN);
    pages().filter(|page| lies_over(*page)).for_each(|page| set.add(page..page + PAGE));
    OverlayPages { pages: Arc::new(set), file: Arc::new(file(lies_over, true)) }
}

/// Makes a subject whose working set is all pages, the last first.
fn subject(memory: SnapshotMemory, over: Option<OverlayPages>) -> ReplaySubject {
    let backwards = pages().map(|page| LEN - PAGE - page);
    ReplaySubject { memory, over, set: WorkingSet::of(LEN, backwards), len: LEN, path: PathBuf::from("/s") }
}

/// Makes subjects of raw and packed memory, with and without pages of a diff.
fn subjects() -> [ReplaySubject; 4] {
    [
        subject(raw(), None),
        subject(packed(), None),
        subject(raw(), Some(over())),
        subject(packed(), Some(over())),
    ]
}

#[test]
fn every_strategy_has_the_memory_of_the_snapshot() {
    for subject in subjects() {
        subject.read().unwrap();
        for strategy in strategies::of(&subject) {
            let PreparedMemory { ram, .. } = (strategy.prepare)(&subject).unwrap();
            for page in subject.pages() {
                let found: u64 = ram.guest().read_obj(GuestAddress(page)).unwrap();
                assert_eq!(found, word(page, subject.over.is_some()), "{}, {page:#x}", strategy.name);
            }
        }
    }
}

#[test]
fn each_replay_touches_every_page_once() {
    for subject in subjects() {
        for strategy in strategies::of(&subject) {
            let mut samples = StrategySamples::default();
            replay_once(strategy, &subject, &mut samples).unwrap();
            replay_once(strategy, &subject, &mut samples).unwrap();
            let measured = samples.summary(strategy);
            assert_eq!(measured.touches, 2 * LEN / PAGE, "{}", strategy.name);
            assert!(measured.min_ns <= measured.p50_ns && measured.p99_ns <= measured.max_ns, "{measured:?}");
            // The data of a memfd cannot be dropped, and is counted.
            let over = |page| subject.over.is_some() && lies_over(page);
            let data = pages().filter(|page| over(*page) || !is_zero(*page));
            let stayed = measured.stayed_cached.filter(|_| strategy.name.ends_with("dropped"));
            assert_eq!(stayed, measured.stayed_cached);
            assert!(stayed.is_none_or(|stayed| stayed >= data.count() as u64), "{measured:?}");
        }
    }
}

#[test]
fn damaged_chunk_is_found_before_it_is_touched() {
    let mut bytes = vec![7; LEN as usize];
    bytes.iter_mut().zip(0_u8..=255).for_each(|(byte, other)| *byte = other);
    let mut packed = testing::packed(&testing::TestMemory::of(bytes), &packing(Compression::Lz4, CHUNK));
    packed[10] ^= 1;
    let memory = SnapshotMemory::Packed(Packed::of(Arc::new(testing::open(&packed).unwrap())));
    let error = subject(memory, None).read().unwrap_err().to_string();
    assert!(error.contains("is damaged in chunk 0"), "{error}");
}
