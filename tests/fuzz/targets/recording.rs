//! Fuzzes recordings: the pages that a guest touches, and the texts of events that end a recording.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use volt_vmm::{RecordUntil, WorkingSet};

const PAGE: u64 = 4096;
const PAGES: u64 = 1 << 15;

#[derive(Debug, Arbitrary)]
struct Input {
    event: String,
    touched: Vec<Touch>,
    other: Vec<Touch>,
}

#[derive(Debug, Arbitrary)]
enum Touch {
    At(u16),
    /// The pages after the last one.
    Next(u8),
    Before,
}

fn pages(touches: &[Touch]) -> Vec<u64> {
    let mut pages = vec![];
    let mut last = 0;
    for touch in touches {
        let range = match touch {
            Touch::At(page) => u64::from(*page)..u64::from(*page) + 1,
            Touch::Next(count) => last + 1..last + 1 + u64::from(*count),
            Touch::Before => last.saturating_sub(1)..last,
        };
        for page in range {
            last = page % PAGES;
            pages.push(last);
        }
    }
    pages
}

/// The first touches, in their order.
fn firsts(pages: &[u64]) -> Vec<u64> {
    let mut seen = std::collections::BTreeSet::new();
    pages.iter().copied().filter(|page| seen.insert(*page)).collect()
}

fn set(pages: &[u64]) -> WorkingSet {
    WorkingSet::of(PAGES * PAGE, pages.iter().map(|page| page * PAGE))
}

fuzz_target!(|input: Input| {
    let Input { event, touched, other } = input;
    match event.parse::<RecordUntil>() {
        Ok(until) => assert_eq!(until.to_string().parse(), Ok(until)),
        Err(problem) => assert!(problem.contains(&format!("{event:?}")), "{problem}"),
    }
    let (touched, other) = (pages(&touched), pages(&other));
    let (recorded, before) = (set(&touched), set(&other));
    let first = firsts(&touched);
    let listed = recorded.page_ranges().iter().flat_map(|range| range.start / PAGE..range.end / PAGE);
    assert!(listed.eq(first.iter().copied()), "another order");
    assert_eq!(recorded.pages(), first.len() as u64);
    let shared = first.iter().filter(|page| other.contains(page)).count() as u64;
    assert_eq!(recorded.shared_with(&before, PAGES * PAGE), shared);
    assert_eq!(before.shared_with(&recorded, PAGES * PAGE), shared);
});
