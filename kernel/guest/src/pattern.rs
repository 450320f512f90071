//! Memory under test: pages with known bytes, which keep changing.
//!
//! The words of a page follow from its index and a generation. A step checks the next few pages and rewrites
//! them for the next generation:
//!
//! ```text
//! page 0 ........ cursor ............ last page
//!   generation + 1  |     generation
//! ```
//!
//! A lost, exchanged, zeroed or outdated page does not match its index and generation.

const WORDS_PER_PAGE: usize = 4096 / 8;
const PAGES_PER_MIB: usize = (1 << 20) / 4096;
/// Pages of one step: 2 MiB, little enough for an emulated processor.
const PAGES_PER_STEP: usize = 512;

type Page = [u64; WORDS_PER_PAGE];

/// The index of a page whose words are wrong.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Corrupt(pub(crate) usize);

/// The memory under test.
pub(crate) struct Pattern {
    pages: Vec<Page>,
    generation: u64,
    cursor: usize,
}

impl Pattern {
    /// Allocates and fills `mib` MiB. Returns `None` if the allocation fails.
    pub(crate) fn new(mib: usize) -> Option<Self> {
        let count = mib.checked_mul(PAGES_PER_MIB)?;
        let mut pages = Vec::new();
        pages.try_reserve_exact(count).ok()?;
        pages.resize(count, [0; WORDS_PER_PAGE]);
        pages.iter_mut().enumerate().for_each(|(index, page)| write(page, index, 1));
        Some(Self { pages, generation: 1, cursor: 0 })
    }

    /// Returns the generation of the pages from the cursor on.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Checks every page.
    pub(crate) fn check(&self) -> Result<(), Corrupt> {
        (0..self.pages.len()).try_for_each(|index| self.check_page(index))
    }

    /// Checks the next few pages and rewrites them for the next generation.
    pub(crate) fn step(&mut self) -> Result<(), Corrupt> {
        let end = self.pages.len().min(self.cursor + PAGES_PER_STEP);
        for index in self.cursor..end {
            self.check_page(index)?;
            write(&mut self.pages[index], index, self.generation + 1);
            self.cursor = index + 1;
        }
        if self.cursor == self.pages.len() {
            self.cursor = 0;
            self.generation += 1;
        }
        Ok(())
    }

    fn check_page(&self, index: usize) -> Result<(), Corrupt> {
        let generation = self.generation + u64::from(index < self.cursor);
        let whole = self.pages[index].iter().copied().eq(words(index, generation));
        if whole { Ok(()) } else { Err(Corrupt(index)) }
    }
}

fn write(page: &mut Page, index: usize, generation: u64) {
    page.iter_mut().zip(words(index, generation)).for_each(|(word, value)| *word = value);
}

/// Generates a page's words: a start unique to the page and generation, then steps of an odd constant.
fn words(index: usize, generation: u64) -> impl Iterator<Item = u64> {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut start =
        (index as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ generation.wrapping_mul(0x94d0_49bb_1331_11eb);
    start ^= start >> 31;
    (1..=WORDS_PER_PAGE as u64).map(move |word| start.wrapping_add(word.wrapping_mul(STEP)))
}

#[cfg(test)]
mod tests {
    use super::{Corrupt, Pattern};

    #[test]
    fn memory_stays_whole_through_rounds_of_steps() {
        let mut pattern = Pattern::new(3).expect("3 MiB");
        for _ in 0..5 {
            pattern.step().expect("a whole page");
            pattern.check().expect("whole memory");
        }
        assert_eq!(pattern.generation(), 3);
    }

    #[test]
    fn check_and_step_name_a_lost_page() {
        let mut pattern = Pattern::new(1).expect("1 MiB");
        pattern.pages[77] = [0; 512];
        assert_eq!(pattern.check(), Err(Corrupt(77)));
        assert_eq!(pattern.step(), Err(Corrupt(77)));
    }

    #[test]
    fn check_names_a_page_of_an_older_generation() {
        let mut pattern = Pattern::new(1).expect("1 MiB");
        let old = pattern.pages[5];
        pattern.step().expect("a whole page");
        pattern.pages[5] = old;
        assert_eq!(pattern.check(), Err(Corrupt(5)));
    }
}
