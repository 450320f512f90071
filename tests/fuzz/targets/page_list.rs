//! Fuzzes the list of pages that a VM sends to its pager. A list that is accepted has disjoint ranges within
//! memory, and is written as it came.
#![no_main]

use std::fs::File;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use volt_fuzz::files::in_memory;
use volt_vmm::fuzzing::list::{list, listed};
use volt_vmm::fuzzing::page_ranges;

const PAGE: u64 = 4096;

#[derive(Debug, Arbitrary)]
enum Input {
    Any {
        memory: u64,
        bytes: Vec<u8>,
    },
    Ranges {
        memory: u16,
        ranges: Vec<(u16, u8)>,
    },
    /// A file with a hole, and no file.
    Hole {
        memory: u64,
        len: u64,
    },
    Device {
        memory: u64,
    },
}

fn check(file: &File, memory: u64) -> bool {
    let Ok(ranges) = listed(file, memory) else { return false };
    assert!(ranges.iter().all(|range| range.start < range.end && range.end <= memory));
    assert!(page_ranges::are_apart(&ranges));
    let mut sorted = ranges.clone();
    sorted.sort_by_key(|range| range.start);
    assert!(sorted.array_windows().all(|[one, next]| one.end <= next.start), "{sorted:?}");
    let again = list(&ranges).expect("a file in memory");
    assert_eq!(listed(&again, memory).expect("its own list"), ranges);
    true
}

fuzz_target!(|input: Input| match input {
    Input::Any { memory, bytes } => {
        let encoded = check(&in_memory(&bytes), memory);
        assert!(!encoded || bytes.len().is_multiple_of(page_ranges::LEN));
    }
    Input::Ranges { memory, ranges } => {
        let memory = u64::from(memory) * PAGE;
        let range = |(first, count): &(u16, u8)| {
            u64::from(*first) * PAGE..(u64::from(*first) + u64::from(*count)) * PAGE
        };
        let ranges: Vec<_> = ranges.iter().map(range).collect();
        let right = ranges.iter().all(|range| range.start < range.end && range.end <= memory)
            && ranges.iter().enumerate().all(|(at, one)| {
                ranges[..at].iter().all(|other| one.end <= other.start || other.end <= one.start)
            });
        let fits = ranges.len() as u64 * page_ranges::LEN as u64 <= page_ranges::longest(memory);
        let file = list(&ranges).expect("a file in memory");
        assert_eq!(check(&file, memory), right && fits);
    }
    Input::Hole { memory, len } => {
        let file = in_memory(&[]);
        file.set_len(len % (1 << 40)).expect("a file in memory");
        assert!(!check(&file, memory % (1 << 46)) || len % (1 << 40) == 0);
    }
    Input::Device { memory } => {
        assert!(!check(&File::open("/dev/null").expect("a device"), memory));
    }
});
