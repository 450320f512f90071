//! Fuzzes the list of a diff: damaged, forged with a correct checksum, or any bytes. A list that is accepted
//! lies within memory, and damage is noticed.
#![no_main]

use std::os::unix::fs::FileExt;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use volt_fuzz::files::{Damage, in_memory};
use volt_fuzz::snapshots::{MEMORY, Pages, diff_of};
use volt_vmm::fuzzing::{crc64, diff};

const BASE: u64 = 0x0123_4567_89ab_cdef;

#[derive(Debug, Arbitrary)]
enum Input {
    Damaged { pages: Pages, damage: Vec<Damage> },
    Forged { bitmap: Vec<u8>, facts: [Option<u64>; 3], first_version: bool, digest: u64 },
    Any(Vec<u8>),
}

/// Reads a list behind pages that are zero.
fn read(list: &[u8]) -> Option<diff::DiffPages> {
    let file = in_memory(&[]);
    file.write_all_at(list, MEMORY as u64).expect("a file in memory");
    let listed = diff::read(&file, MEMORY as u64, BASE).expect("a file in memory").ok()?;
    assert!(listed.pages.is_within(MEMORY as u64));
    assert!(listed.pages.len() <= (MEMORY >> 12) as u64);
    Some(listed)
}

fuzz_target!(|input: Input| match input {
    Input::Damaged { pages, damage } => {
        let (whole, _) = diff_of(BASE, &pages);
        let right = read(&whole[MEMORY..]).expect("a diff in order");
        assert_eq!(right.pages, pages.set());
        let mut list = whole[MEMORY..].to_vec();
        damage.iter().for_each(|damage| damage.apply(&mut list));
        if let Some(found) = read(&list) {
            assert!(list == whole[MEMORY..] && found == right, "another list");
        }
    }
    Input::Forged { mut bitmap, facts, first_version, digest } => {
        bitmap.resize(MEMORY >> 15, 0);
        let facts = [facts[0].unwrap_or(MEMORY as u64), facts[1].unwrap_or(BASE), facts[2].unwrap_or(digest)];
        let facts = &facts[..if first_version { 2 } else { 3 }];
        let words: Vec<u8> = facts.iter().flat_map(|fact| fact.to_le_bytes()).collect();
        let checksum = crc64(&[&bitmap[..], &words].concat());
        let parts = [&bitmap[..], &checksum.to_le_bytes(), &words, b"VOLTDIFF"];
        if let Some(listed) = read(&parts.concat()) {
            let bytes: Vec<u8> = listed.pages.bytes().collect();
            assert_eq!((bytes, listed.digest), (bitmap, facts.get(2).copied()));
        }
    }
    Input::Any(bytes) => drop(read(&bytes)),
});
