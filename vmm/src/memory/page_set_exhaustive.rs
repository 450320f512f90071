//! The algebra of page sets: all pairs of sets of a few pages at the border of two leaves, against sets of
//! bits.

use super::*;

/// Pages in a leaf.
const LEAF_PAGES: u64 = LEAF as u64 * WORD;
/// The pages that vary: the last ones of a leaf and the first ones of the next.
const VARIED: u64 = 6;
const FIRST: u64 = LEAF_PAGES - 3;
const MEMORY: u64 = (LEAF_PAGES + 3) * PAGE;

/// The set of the pages whose bits are set.
fn set(bits: u64) -> PageSet {
    let mut set = PageSet::none(MEMORY);
    for page in (0..VARIED).filter(|page| bits >> page & 1 != 0) {
        set.add((FIRST + page) * PAGE..(FIRST + page + 1) * PAGE);
    }
    set
}

/// The bits of a set, by its ranges and by asking for each page.
fn bits(set: &PageSet) -> u64 {
    let pages = |range: Range<u64>| range.start / PAGE..range.end / PAGE;
    let listed = set.page_ranges().flat_map(pages).fold(0_u64, |bits, page| bits | 1 << (page - FIRST));
    let asked =
        (0..VARIED).filter(|page| set.has((FIRST + page) * PAGE)).fold(0, |bits, page| bits | 1 << page);
    assert_eq!(listed, asked);
    assert_eq!((set.len(), set.is_empty()), (u64::from(listed.count_ones()), listed == 0));
    assert!(set.page_ranges().zip(set.page_ranges().skip(1)).all(|(one, next)| one.end < next.start));
    listed
}

#[test]
fn union_and_difference_of_all_pairs_are_those_of_their_bits() {
    for one in 0..1 << VARIED {
        for other in 0..1 << VARIED {
            let (left, right) = (set(one), set(other));
            assert_eq!(bits(&left.clone().and(&right)), one | other);
            let mut less = left.clone();
            less.remove_all(&right);
            assert_eq!(bits(&less), one & !other);
            assert_eq!(less, set(one & !other));
            assert_eq!(left == right, one == other);
        }
    }
}

#[test]
fn gaps_of_all_ranges_are_the_pages_that_a_set_lacks() {
    for has in 0..1 << VARIED {
        let set = set(has);
        for start in 0..=VARIED {
            for end in start..=VARIED {
                let gaps = set.gaps((FIRST + start) * PAGE..(FIRST + end) * PAGE);
                let found: Vec<u64> =
                    gaps.flat_map(|gap| gap.start / PAGE - FIRST..gap.end / PAGE - FIRST).collect();
                let lacking: Vec<u64> = (start..end).filter(|page| has >> page & 1 == 0).collect();
                assert_eq!(found, lacking, "{has:b}, {start}..{end}");
            }
        }
    }
}

#[test]
fn all_sets_survive_encoding_and_shorter_memory_is_noticed() {
    for has in 0..1 << VARIED {
        let set = set(has);
        let bytes: Vec<u8> = set.bytes().collect();
        for left_out in 0..VARIED {
            let memory = MEMORY - left_out * PAGE;
            let fits = has >> (VARIED - left_out) == 0;
            assert_eq!(set.is_within(memory), fits, "{has:b} in {memory}");
            if PageSet::bytes_len(memory) == bytes.len() as u64 {
                assert_eq!(PageSet::from_bytes(memory, &bytes).is_some(), fits, "{has:b} in {memory}");
            }
        }
        assert_eq!(PageSet::from_bytes(MEMORY, &bytes), Some(set));
    }
}

#[test]
fn every_range_of_bytes_adds_the_pages_that_it_touches() {
    const STEP: u64 = PAGE / 2;
    for start in 0..=2 * VARIED {
        for end in start..=2 * VARIED {
            let mut set = PageSet::none(MEMORY);
            set.add(FIRST * PAGE + start * STEP..FIRST * PAGE + end * STEP);
            let pages = if start == end { 0..0 } else { start / 2..end.div_ceil(2) };
            let touched = pages.fold(0, |bits, page| bits | 1 << page);
            assert_eq!(bits(&set), touched, "{start}..{end}");
        }
    }
}

#[test]
#[should_panic(expected = "a page beyond the end of RAM")]
fn page_in_a_leaf_beyond_memory_is_refused() {
    PageSet::none(LEAF_BYTES).add(LEAF_BYTES..LEAF_BYTES + PAGE);
}
