//! A set of pages of a guest's RAM, by their offset in it.

use std::ops::Range;

use super::PAGE;

/// Bits of a word.
const WORD: u64 = u64::BITS as u64;

/// The set: a bit a page, 32 KiB for each GiB of RAM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageSet {
    words: Vec<u64>,
}

impl PageSet {
    /// None of the pages of `bytes` of RAM.
    #[must_use]
    pub fn none(bytes: u64) -> Self {
        Self { words: vec![0; bytes.div_ceil(PAGE * WORD) as usize] }
    }

    /// Adds the pages of whole words: `words` as KVM and the bitmaps of the VMM's own writes have them, a bit a page from the page
    /// at `offset` on, which is a multiple of 64 pages.
    pub fn add_words(&mut self, offset: u64, words: impl IntoIterator<Item = u64>) {
        let first = (offset / PAGE / WORD) as usize;
        self.words[first..].iter_mut().zip(words).for_each(|(word, more)| *word |= more);
    }

    /// Adds all pages that a range of offsets touches.
    pub fn add(&mut self, range: Range<u64>) {
        for page in range.start / PAGE..range.end.div_ceil(PAGE) {
            self.words[(page / WORD) as usize] |= 1 << (page % WORD);
        }
    }

    /// Adds those of another set of the same RAM.
    pub fn add_all(&mut self, other: &Self) {
        self.add_words(0, other.words.iter().copied());
    }

    /// Removes those of another set of the same RAM.
    pub fn remove_all(&mut self, other: &Self) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, less)| *word &= !less);
    }

    /// A bit a page.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// A bit a page, in words of 8 bytes, little-endian.
    pub fn bytes(&self) -> impl Iterator<Item = u8> + '_ {
        self.words.iter().flat_map(|word| word.to_le_bytes())
    }

    /// Bytes of [`PageSet::bytes`] for so much RAM.
    #[must_use]
    pub fn bytes_len(bytes: u64) -> u64 {
        bytes.div_ceil(PAGE * WORD) * 8
    }

    /// What [`PageSet::bytes`] gave of a set for `bytes` of RAM. None where they are more or fewer, or name a page beyond its end.
    #[must_use]
    pub fn from_bytes(bytes: u64, given: &[u8]) -> Option<Self> {
        if given.len() as u64 != Self::bytes_len(bytes) {
            return None;
        }
        let words = given.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")));
        let set = Self { words: words.collect() };
        let end = set.runs().last().map_or(0, |run| run.end);
        (end <= bytes).then_some(set)
    }

    /// Both together.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        self.add_all(other);
        self
    }

    /// Whether the page at `offset` is in it.
    #[must_use]
    pub fn has(&self, offset: u64) -> bool {
        let page = offset / PAGE;
        self.words[(page / WORD) as usize] & 1 << (page % WORD) != 0
    }

    /// Pages.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Ranges of offsets, in order and apart.
    pub fn runs(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut page = 0;
        std::iter::from_fn(move || {
            let start = self.next(page, true)?;
            let end = self.next(start, false).unwrap_or(self.words.len() as u64 * WORD);
            page = end;
            Some(start * PAGE..end * PAGE)
        })
    }

    /// The same ranges in pieces of at most so many bytes.
    pub fn runs_of(&self, most: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        let pieces = move |run: Range<u64>| {
            let end = run.end;
            run.step_by(most as usize).map(move |start| start..end.min(start + most))
        };
        self.runs().flat_map(pieces)
    }

    /// The first page from `page` on that is in the set, or is not.
    fn next(&self, page: u64, is_in: bool) -> Option<u64> {
        let flip = if is_in { 0 } else { u64::MAX };
        let mut at = (page / WORD) as usize;
        let mut word = (self.words.get(at)? ^ flip) & u64::MAX << (page % WORD);
        while word == 0 {
            at += 1;
            word = self.words.get(at)? ^ flip;
        }
        Some(at as u64 * WORD + u64::from(word.trailing_zeros()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_set(ranges in prop::collection::vec((0_u64..400, 1_u64..80), 0..12)) {
            let mut set = PageSet::none(512 * PAGE);
            let mut model = BTreeSet::new();
            for (start, count) in ranges {
                set.add(start * PAGE..(start + count) * PAGE);
                model.extend(start..start + count);
            }
            prop_assert_eq!(set.len(), model.len() as u64);
            prop_assert_eq!(set.is_empty(), model.is_empty());
            let listed: Vec<u64> = set.runs().flat_map(|run| run.start / PAGE..run.end / PAGE).collect();
            prop_assert_eq!(&listed, &model.iter().copied().collect::<Vec<_>>());
            let pieces: Vec<_> = set.runs_of(3 * PAGE).collect();
            prop_assert!(pieces.iter().all(|piece| piece.end - piece.start <= 3 * PAGE));
            let in_pieces: Vec<u64> = pieces.into_iter().flat_map(|run| run.start / PAGE..run.end / PAGE).collect();
            prop_assert_eq!(&in_pieces, &listed);
            prop_assert!((0..512).all(|page| set.has(page * PAGE) == model.contains(&page)));
            let apart = set.runs().zip(set.runs().skip(1)).all(|(one, next)| one.end < next.start);
            prop_assert!(apart);
            let mut twice = PageSet::none(512 * PAGE);
            twice.add_all(&set);
            prop_assert_eq!(&twice, &set);
            twice.remove_all(&set);
            prop_assert!(twice.is_empty());
        }
    }

    #[test]
    fn bytes_are_those_of_a_set_or_none() {
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

    #[test]
    fn words_begin_where_their_region_does() {
        let mut set = PageSet::none(256 * PAGE);
        set.add_words(128 * PAGE, [1, 1 << 63]);
        let runs: Vec<_> = set.runs().map(|run| run.start / PAGE..run.end / PAGE).collect();
        assert_eq!(runs, [128..129, 255..256]);
    }
}
