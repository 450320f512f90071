//! A set of pages of guest memory, by their offset.
//!
//! ```text
//!   PageSet ── leaf 0: none │ leaf 1: all │ leaf 2: a bit a page │ …     128 MiB of RAM each
//! ```
//!
//! A leaf takes memory once it has some of its pages but not all. A list of pages from a file therefore costs
//! about what the file takes on disk, whatever length of RAM it claims.

use std::ops::Range;

use super::PAGE;

/// Bits in a word.
const WORD: u64 = u64::BITS as u64;
/// Words in a leaf: one page.
const LEAF: usize = 512;
/// Bytes of guest memory that a leaf covers.
const LEAF_BYTES: u64 = LEAF as u64 * WORD * PAGE;
static NO_WORDS: [u64; LEAF] = [0; LEAF];
static ALL_WORDS: [u64; LEAF] = [u64::MAX; LEAF];

/// Bytes of [`PageSet::bytes`] to read at once.
pub const BYTES_STEP: usize = 4 * LEAF * 8;

/// The set. It takes at most a bit for each page: 32 KiB for each GiB of RAM.
#[derive(Clone, Debug)]
pub struct PageSet {
    /// Leaves up to the last one with a page.
    leaves: Vec<Leaf>,
    /// Words for all of RAM.
    words: u64,
}

#[derive(Clone, Debug)]
enum Leaf {
    None,
    All,
    Some(Box<[u64; LEAF]>),
}

impl Leaf {
    fn words(&self) -> &[u64; LEAF] {
        match self {
            Self::None => &NO_WORDS,
            Self::All => &ALL_WORDS,
            Self::Some(words) => words,
        }
    }

    fn words_mut(&mut self) -> &mut [u64; LEAF] {
        if !matches!(self, Self::Some(_)) {
            *self = Self::Some(Box::new(*self.words()));
        }
        match self {
            Self::Some(words) => words,
            Self::None | Self::All => unreachable!("it was made a leaf with words"),
        }
    }
}

impl PartialEq for PageSet {
    fn eq(&self, other: &Self) -> bool {
        let leaves = self.leaves.len().max(other.leaves.len());
        self.words == other.words && (0..leaves).all(|at| self.leaf(at) == other.leaf(at))
    }
}

impl Eq for PageSet {}

impl PageSet {
    /// An empty set over `bytes` of RAM.
    #[must_use]
    pub fn none(bytes: u64) -> Self {
        Self { leaves: Vec::new(), words: bytes.div_ceil(PAGE * WORD) }
    }

    fn leaf(&self, at: usize) -> &[u64; LEAF] {
        self.leaves.get(at).map_or(&NO_WORDS, Leaf::words)
    }

    fn leaf_mut(&mut self, at: usize) -> &mut Leaf {
        assert!(((at * LEAF) as u64) < self.words, "a page beyond the end of RAM");
        if self.leaves.len() <= at {
            self.leaves.resize(at + 1, Leaf::None);
        }
        &mut self.leaves[at]
    }

    /// Adds the pages of `words`, a bit for each page from `offset` on, which is a multiple of 64 pages.
    /// KVM's dirty log and [`super::own_writes`] have this form.
    pub fn add_words(&mut self, offset: u64, words: impl IntoIterator<Item = u64>) {
        let first = (offset / PAGE / WORD) as usize;
        for (at, more) in (first..).zip(words).filter(|(_, more)| *more != 0) {
            let leaf = self.leaf_mut(at / LEAF);
            if !matches!(leaf, Leaf::All) {
                leaf.words_mut()[at % LEAF] |= more;
            }
        }
    }

    /// Adds all pages that overlap a range of offsets.
    pub fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut page, end) = (range.start / PAGE, range.end.div_ceil(PAGE));
        while page < end {
            let (leaf, within) = (page * PAGE / LEAF_BYTES, page % (LEAF as u64 * WORD));
            let last = end.min((leaf + 1) * LEAF as u64 * WORD);
            let leaf = self.leaf_mut(leaf as usize);
            if last - page == LEAF as u64 * WORD {
                *leaf = Leaf::All;
            } else if !matches!(leaf, Leaf::All) {
                add_bits(leaf.words_mut(), within..within + (last - page));
            }
            page = last;
        }
    }

    /// Adds the pages of another set over the same RAM.
    pub fn add_all(&mut self, other: &Self) {
        for (at, more) in other.leaves.iter().enumerate() {
            match (more, self.leaf_mut(at)) {
                (Leaf::None, _) | (_, Leaf::All) => {}
                (Leaf::Some(more), leaf @ Leaf::Some(_)) => {
                    leaf.words_mut().iter_mut().zip(&**more).for_each(|(word, more)| *word |= more);
                }
                (more, leaf) => *leaf = more.clone(),
            }
        }
    }

    /// Removes the pages of another set over the same RAM.
    pub fn remove_all(&mut self, other: &Self) {
        for (leaf, less) in self.leaves.iter_mut().zip(&other.leaves) {
            match (&*leaf, less) {
                (Leaf::None, _) | (_, Leaf::None) => {}
                (_, Leaf::All) => *leaf = Leaf::None,
                (_, Leaf::Some(less)) => {
                    leaf.words_mut().iter_mut().zip(&**less).for_each(|(word, less)| *word &= !less);
                }
            }
        }
    }

    /// A bit for each page, in words of 8 bytes, little-endian.
    pub fn bytes(&self) -> impl Iterator<Item = u8> + '_ {
        let words = (0..self.words as usize).map(|at| self.leaf(at / LEAF)[at % LEAF]);
        words.flat_map(u64::to_le_bytes)
    }

    /// Length of [`PageSet::bytes`] for this much RAM.
    #[must_use]
    pub fn bytes_len(bytes: u64) -> u64 {
        bytes.div_ceil(PAGE * WORD) * 8
    }

    /// Decodes [`PageSet::bytes`] of a set over `bytes` of RAM. Returns nothing if the length is wrong or a
    /// page lies beyond the end.
    #[must_use]
    pub fn from_bytes(bytes: u64, given: &[u8]) -> Option<Self> {
        if given.len() as u64 != Self::bytes_len(bytes) {
            return None;
        }
        let mut set = Self::none(bytes);
        for (at, step) in (0..).step_by(BYTES_STEP).zip(given.chunks(BYTES_STEP)) {
            set.add_bytes(at, step);
        }
        set.is_within(bytes).then_some(set)
    }

    /// Adds the pages of a part of [`PageSet::bytes`], from byte `at` on. Offset and length are multiples of
    /// 8.
    pub fn add_bytes(&mut self, at: u64, given: &[u8]) {
        const STEP: usize = LEAF * 8;
        for (at, step) in (at..).step_by(STEP).zip(given.chunks(STEP)) {
            let offset = at * 8 * PAGE;
            if step.len() == STEP && step.iter().all(|byte| *byte == u8::MAX) {
                self.add(offset..offset + LEAF_BYTES);
            } else {
                let words = step.chunks_exact(8);
                self.add_words(
                    offset,
                    words.map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes"))),
                );
            }
        }
    }

    /// Whether all pages lie in the first `bytes` of RAM.
    #[must_use]
    pub fn is_within(&self, bytes: u64) -> bool {
        self.page_ranges().last().is_none_or(|run| run.end <= bytes)
    }

    /// The union of both sets.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        self.add_all(other);
        self
    }

    /// Whether the set has the page at `offset`.
    #[must_use]
    pub fn has(&self, offset: u64) -> bool {
        let page = offset / PAGE;
        let word = (page / WORD) as usize;
        self.leaf(word / LEAF)[word % LEAF] & 1 << (page % WORD) != 0
    }

    /// Pages.
    #[must_use]
    pub fn len(&self) -> u64 {
        let count = |leaf: &Leaf| match leaf {
            Leaf::None => 0,
            Leaf::All => LEAF as u64 * WORD,
            Leaf::Some(words) => words.iter().map(|word| u64::from(word.count_ones())).sum(),
        };
        self.leaves.iter().map(count).sum()
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leaves.iter().all(|leaf| match leaf {
            Leaf::None => true,
            Leaf::All => false,
            Leaf::Some(words) => words.iter().all(|word| *word == 0),
        })
    }

    /// Disjoint ranges of offsets, in ascending order.
    pub fn page_ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut page = 0;
        std::iter::from_fn(move || {
            let start = self.next(page, true)?;
            let end = self.next(start, false).unwrap_or(self.leaves.len() as u64 * LEAF as u64 * WORD);
            page = end;
            Some(start * PAGE..end * PAGE)
        })
    }

    /// The same ranges in pieces of at most `most` bytes.
    pub fn page_ranges_up_to(&self, most: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        let pieces = move |run: Range<u64>| {
            let end = run.end;
            run.step_by(most as usize).map(move |start| start..end.min(start + most))
        };
        self.page_ranges().flat_map(pieces)
    }

    /// The parts of a range of whole pages that are not in the set.
    pub fn gaps(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let (mut page, end) = (range.start / PAGE, range.end / PAGE);
        std::iter::from_fn(move || {
            let start =
                self.next(page, false).unwrap_or(page.max(self.leaves.len() as u64 * LEAF as u64 * WORD));
            page = self.next(start, true).unwrap_or(end).min(end);
            (start < end).then(|| start * PAGE..page * PAGE)
        })
    }

    /// The first page from `page` on that is in the set, or is not. Pages beyond the last leaf are not.
    fn next(&self, page: u64, is_in: bool) -> Option<u64> {
        let flip = if is_in { 0 } else { u64::MAX };
        let mut at = (page / WORD) as usize;
        let mut mask = u64::MAX << (page % WORD);
        while let Some(leaf) = self.leaves.get(at / LEAF) {
            if matches!((leaf, is_in), (Leaf::None, true) | (Leaf::All, false)) {
                at = (at / LEAF + 1) * LEAF;
            } else {
                let word = (leaf.words()[at % LEAF] ^ flip) & mask;
                if word != 0 {
                    return Some(at as u64 * WORD + u64::from(word.trailing_zeros()));
                }
                at += 1;
            }
            mask = u64::MAX;
        }
        None
    }
}

/// Sets a range of bits.
fn add_bits(words: &mut [u64; LEAF], bits: Range<u64>) {
    let (mut bit, end) = (bits.start, bits.end);
    while bit < end {
        let count = (WORD - bit % WORD).min(end - bit);
        words[(bit / WORD) as usize] |= (u64::MAX >> (WORD - count)) << (bit % WORD);
        bit += count;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn page_set_equals_a_model(ranges in prop::collection::vec((0_u64..400, 1_u64..80), 0..12)) {
            let mut set = PageSet::none(512 * PAGE);
            let mut model = BTreeSet::new();
            for (start, count) in ranges {
                set.add(start * PAGE..(start + count) * PAGE);
                model.extend(start..start + count);
            }
            prop_assert_eq!(set.len(), model.len() as u64);
            prop_assert_eq!(set.is_empty(), model.is_empty());
            let pages = |run: Range<u64>| run.start / PAGE..run.end / PAGE;
            let listed: Vec<u64> = set.page_ranges().flat_map(pages).collect();
            prop_assert_eq!(&listed, &model.iter().copied().collect::<Vec<_>>());
            let pieces: Vec<_> = set.page_ranges_up_to(3 * PAGE).collect();
            prop_assert!(pieces.iter().all(|piece| piece.end - piece.start <= 3 * PAGE));
            let in_pieces: Vec<u64> = pieces.into_iter().flat_map(pages).collect();
            prop_assert_eq!(&in_pieces, &listed);
            prop_assert!((0..512).all(|page| set.has(page * PAGE) == model.contains(&page)));
            let mut pairs = set.page_ranges().zip(set.page_ranges().skip(1));
            let apart = pairs.all(|(one, next)| one.end < next.start);
            prop_assert!(apart);
            let gaps: Vec<u64> =
                set.gaps(3 * PAGE..500 * PAGE).flat_map(|run| run.start / PAGE..run.end / PAGE).collect();
            prop_assert_eq!(gaps, (3..500).filter(|page| !model.contains(page)).collect::<Vec<_>>());
            let mut twice = PageSet::none(512 * PAGE);
            twice.add_all(&set);
            prop_assert_eq!(&twice, &set);
            twice.remove_all(&set);
            prop_assert!(twice.is_empty());
        }
    }

    #[test]
    fn set_decodes_from_its_bytes_alone() {
        let memory = 100 * PAGE;
        let mut set = PageSet::none(memory);
        set.add(3 * PAGE..5 * PAGE);
        set.add(99 * PAGE..100 * PAGE);
        let bytes: Vec<u8> = set.bytes().collect();
        assert_eq!(bytes.len() as u64, PageSet::bytes_len(memory));
        assert_eq!(PageSet::from_bytes(memory, &bytes), Some(set));
        assert_eq!(PageSet::from_bytes(memory, &bytes[..8]), None);
        assert_eq!(PageSet::from_bytes(memory, &[&bytes[..], &[0; 8]].concat()), None);
        assert_eq!(PageSet::from_bytes(99 * PAGE, &bytes), None, "a page beyond the end");
    }

    /// Compares ranges over leaves of all kinds with a model.
    #[test]
    fn leaves_merge_and_split() {
        let (memory, leaf) = (4 * LEAF_BYTES, LEAF_BYTES);
        let runs = |set: &PageSet| set.page_ranges().collect::<Vec<_>>();
        let mut set = PageSet::none(memory);
        set.add(leaf - PAGE..3 * leaf + PAGE);
        assert_eq!(runs(&set), std::slice::from_ref(&(leaf - PAGE..3 * leaf + PAGE)));
        assert_eq!(set.len() * PAGE, 2 * leaf + 2 * PAGE);
        assert!(matches!(set.leaves[..], [Leaf::Some(_), Leaf::All, Leaf::All, Leaf::Some(_)]));
        let mut hole = PageSet::none(memory);
        hole.add(2 * leaf + 5 * PAGE..2 * leaf + 7 * PAGE);
        set.remove_all(&hole);
        assert_eq!(runs(&set), [leaf - PAGE..2 * leaf + 5 * PAGE, 2 * leaf + 7 * PAGE..3 * leaf + PAGE]);
        assert!(!set.has(2 * leaf + 5 * PAGE) && set.has(2 * leaf + 7 * PAGE) && !set.has(4 * leaf - PAGE));
        let bytes: Vec<u8> = set.bytes().collect();
        assert_eq!(PageSet::from_bytes(memory, &bytes), Some(set.clone()));
        assert_eq!(set.clone().and(&hole).len() * PAGE, 2 * leaf + 2 * PAGE);
        let mut all = PageSet::none(memory);
        all.add(0..memory);
        assert_eq!(PageSet::from_bytes(memory, &all.bytes().collect::<Vec<_>>()), Some(all.clone()));
        assert!(all.leaves.iter().all(|leaf| matches!(leaf, Leaf::All)));
        assert_eq!(runs(&all), std::slice::from_ref(&(0..memory)));
        all.remove_all(&all.clone());
        assert_eq!(all, PageSet::none(memory));
        assert!(all.is_empty());
    }

    #[test]
    fn words_start_at_their_region() {
        let mut set = PageSet::none(256 * PAGE);
        set.add_words(128 * PAGE, [1, 1 << 63]);
        let runs: Vec<_> = set.page_ranges().map(|run| run.start / PAGE..run.end / PAGE).collect();
        assert_eq!(runs, [128..129, 255..256]);
    }
}

#[cfg(test)]
#[path = "page_set_exhaustive.rs"]
mod exhaustive;
