//! Fuzzes the file of a working set: any bytes, and ranges with a correct checksum. A set that is accepted
//! has disjoint ranges within memory, and is the same after it is written again.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use volt_fuzz::Dir;
use volt_fuzz::files::Damage;
use volt_fuzz::snapshots::{ID, write};
use volt_vmm::WorkingSet;
use volt_vmm::fuzzing::{crc64, page_ranges};

const NAME: &str = "working-set";
const PAGE: u64 = 4096;

#[derive(Debug, Arbitrary)]
enum Input {
    Any(Vec<u8>),
    Forged {
        id: Option<u128>,
        memory: Option<u64>,
        written: Option<u64>,
        ranges: Vec<(u32, u32)>,
        damage: Vec<Damage>,
    },
    Ranges {
        written: Option<u8>,
        ranges: Vec<(u16, u8)>,
        damage: Vec<Damage>,
    },
}

const MEMORY: u64 = 1000 * PAGE;

fn file(id: u128, memory: u64, written: Option<u64>, ranges: &[(u32, u32)]) -> Vec<u8> {
    let mut rest = [&id.to_le_bytes()[..], &memory.to_le_bytes()].concat();
    rest.extend(written.into_iter().flat_map(u64::to_le_bytes));
    let numbers = ranges.iter().flat_map(|(first, count)| [*first, *count]);
    rest.extend(numbers.flat_map(u32::to_le_bytes));
    let magic = if written.is_some() { b"VOLTWSTW" } else { b"VOLTWSET" };
    [magic, &crc64(&rest).to_le_bytes()[..], &rest].concat()
}

fuzz_target!(|input: Input| {
    let own = u128::from_str_radix(ID, 16).expect("hex digits");
    let (mut bytes, damage) = match input {
        Input::Any(bytes) => (bytes, Vec::new()),
        Input::Forged { id, memory, written, ranges, damage } => {
            (file(id.unwrap_or(own), memory.unwrap_or(MEMORY), written, &ranges), damage)
        }
        Input::Ranges { written, ranges, damage } => {
            let near = |(first, count): (u16, u8)| (u32::from(first % 1001), u32::from(count % 16));
            let ranges = ranges.into_iter().map(near).collect::<Vec<_>>();
            (file(own, MEMORY, written.map(u64::from), &ranges), damage)
        }
    };
    let whole = bytes.clone();
    damage.iter().for_each(|damage| damage.apply(&mut bytes));
    let dir = Dir::new();
    write(dir.path(), NAME, &bytes);
    let read = WorkingSet::read(&dir.join(NAME), ID, MEMORY);
    let set = match read {
        Ok(set) => set,
        Err(error) => {
            assert!(error.to_string().contains(NAME), "{error}");
            return;
        }
    };
    assert!(damage.is_empty() || bytes == whole, "damage went unnoticed");
    let ranges = set.page_ranges();
    assert!(ranges.iter().all(|range| range.start < range.end && range.end <= MEMORY));
    assert!(page_ranges::are_apart(ranges));
    assert_eq!(set.pages() * PAGE, ranges.iter().map(|range| range.end - range.start).sum::<u64>());
    assert_eq!(set.shared_with(&set, MEMORY), set.pages());
    set.keep(dir.path(), ID, MEMORY).expect("a directory of our own");
    assert!(std::fs::read(dir.join(NAME)).expect("a file") == bytes, "another file");
});
