//! Fuzzes sets of pages against a set of numbers.
#![no_main]

use std::collections::BTreeSet;
use std::ops::Range;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use volt_vmm::fuzzing::page_set::PageSet;

const PAGE: u64 = 4096;
/// Pages of memory: three leaves and a part of one.
const MOST: u64 = 3 * 32_768 + 100;
/// Most acts of one program.
const ACTS: usize = 24;

#[derive(Debug, Arbitrary)]
enum Act {
    Add(bool, Pages),
    Words(bool, u16, Vec<u64>),
    /// Adds a part of the other set's bytes.
    Bytes(bool, u16, u16),
    AddAll(bool),
    RemoveAll(bool),
    And(bool),
    Gaps(bool, Pages),
    Decode(bool, Option<u16>),
}

#[derive(Clone, Debug, Arbitrary)]
struct Pages {
    /// Near the bounds of leaves, or anywhere.
    near: bool,
    at: u32,
    len: u32,
}

impl Pages {
    fn range(&self) -> Range<u64> {
        let at = u64::from(self.at);
        let start = if self.near { (at % 4 * 32_768 + at / 4 % 6).saturating_sub(3) } else { at };
        let start = start % MOST;
        let len = u64::from(self.len) % if self.near { 40_000 } else { 100 };
        start..(start + len).min(MOST)
    }
}

#[derive(Clone)]
struct Both {
    set: PageSet,
    model: BTreeSet<u64>,
}

impl Both {
    fn new() -> Self {
        Self { set: PageSet::none(MOST * PAGE), model: BTreeSet::new() }
    }

    fn check(&self) {
        let Self { set, model } = self;
        assert_eq!((set.len(), set.is_empty()), (model.len() as u64, model.is_empty()));
        assert!(set.is_within(MOST * PAGE));
        let ranges: Vec<_> = set.page_ranges().collect();
        assert!(ranges.iter().all(|range| range.start < range.end));
        assert!(ranges.is_sorted_by(|one, next| one.end < next.start), "{ranges:?}");
        let listed = ranges.into_iter().flat_map(|range| range.start / PAGE..range.end / PAGE);
        assert!(listed.eq(model.iter().copied()), "other pages");
        for page in [0, 1, 63, 64, 32_767, 32_768, 65_535, MOST - 1] {
            assert_eq!(set.has(page * PAGE), model.contains(&page), "page {page}");
        }
    }

    fn gaps(&self, range: Range<u64>) {
        let gaps = self.set.gaps(range.start * PAGE..range.end * PAGE);
        let found = gaps.flat_map(|gap| gap.start / PAGE..gap.end / PAGE);
        assert!(found.eq(range.filter(|page| !self.model.contains(page))), "other gaps");
    }
}

fn decode(both: &Both, cut: Option<u16>) {
    let mut bytes: Vec<u8> = both.set.bytes().collect();
    assert_eq!(bytes.len() as u64, PageSet::bytes_len(MOST * PAGE));
    assert_eq!(PageSet::from_bytes(MOST * PAGE, &bytes).as_ref(), Some(&both.set));
    if let Some(cut) = cut {
        bytes.truncate(usize::from(cut) % bytes.len());
        assert_eq!(PageSet::from_bytes(MOST * PAGE, &bytes), None);
    }
}

fuzz_target!(|acts: Vec<Act>| {
    let mut sets = [Both::new(), Both::new()];
    for act in acts.into_iter().take(ACTS) {
        let split = |sets: &'_ mut [Both; 2], first: bool| {
            let other = sets[usize::from(!first)].clone();
            (usize::from(first), other)
        };
        match act {
            Act::Add(to, pages) => {
                let (both, range) = (&mut sets[usize::from(to)], pages.range());
                // The set takes ranges in bytes, and adds each page that they touch.
                let end = if range.is_empty() { range.start * PAGE } else { range.end * PAGE - 1 };
                both.set.add(range.start * PAGE..end);
                both.model.extend(range);
            }
            Act::Words(to, at, words) => {
                let (both, at) = (&mut sets[usize::from(to)], u64::from(at) % (MOST / 64));
                let words: Vec<_> = words.into_iter().take((MOST / 64 - at) as usize).collect();
                both.set.add_words(at * 64 * PAGE, words.iter().copied());
                for (word, bits) in (at..).zip(words) {
                    both.model.extend((0..64).filter(|bit| bits >> bit & 1 != 0).map(|bit| word * 64 + bit));
                }
            }
            Act::Bytes(to, at, len) => {
                let (to, other) = split(&mut sets, to);
                let bytes: Vec<u8> = other.set.bytes().collect();
                let at = (usize::from(at) % bytes.len()).next_multiple_of(8).min(bytes.len());
                let end = (at + usize::from(len)).next_multiple_of(8).min(bytes.len());
                sets[to].set.add_bytes(at as u64, &bytes[at..end]);
                let pages = at as u64 * 8..end as u64 * 8;
                sets[to].model.extend(other.model.range(pages));
            }
            Act::AddAll(to) => {
                let (to, other) = split(&mut sets, to);
                sets[to].set.add_all(&other.set);
                sets[to].model.extend(other.model);
            }
            Act::RemoveAll(to) => {
                let (to, other) = split(&mut sets, to);
                sets[to].set.remove_all(&other.set);
                sets[to].model.retain(|page| !other.model.contains(page));
            }
            Act::And(to) => {
                let (to, other) = split(&mut sets, to);
                let union = sets[to].set.clone().and(&other.set);
                assert_eq!(union == sets[to].set, other.model.is_subset(&sets[to].model));
                sets[to].set = union;
                sets[to].model.extend(other.model);
            }
            Act::Gaps(of, pages) => sets[usize::from(of)].gaps(pages.range()),
            Act::Decode(of, cut) => decode(&sets[usize::from(of)], cut),
        }
    }
    sets.iter().for_each(Both::check);
    assert_eq!(sets[0].set == sets[1].set, sets[0].model == sets[1].model);
});
