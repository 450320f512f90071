//! Encodes ordered ranges of memory: for each, its first page and its number of pages, in 32 bits each,
//! little-endian.

use std::ops::Range;

use super::PAGE;

/// Bytes of a range.
pub const LEN: usize = 8;

/// Encodes ranges of offsets: whole pages below 16 TiB.
pub fn encode(runs: &[Range<u64>]) -> impl Iterator<Item = u8> + '_ {
    let numbers = runs.iter().flat_map(|run| [run.start / PAGE, (run.end - run.start) / PAGE]);
    numbers.flat_map(|number| (number as u32).to_le_bytes())
}

/// Decodes ranges that [`encode`] wrote, and appends them to `runs`. Returns nothing if a range is empty,
/// lies beyond memory, or is incomplete.
#[must_use]
pub fn add(bytes: &[u8], memory: u64, runs: &mut Vec<Range<u64>>) -> Option<()> {
    let number = |bytes: &[u8]| Some(u64::from(u32::from_le_bytes(bytes.try_into().ok()?)));
    for run in bytes.chunks(LEN) {
        let (first, count) = run.split_at_checked(LEN / 2)?;
        let start = number(first)? * PAGE;
        let end = start + number(count)? * PAGE;
        if start == end || end > memory {
            return None;
        }
        runs.push(start..end);
    }
    Some(())
}

/// Whether the ranges are disjoint. Needs memory in proportion to the number of ranges, not to their lengths.
#[must_use]
pub fn are_apart(runs: &[Range<u64>]) -> bool {
    let mut sorted = runs.to_vec();
    sorted.sort_unstable_by_key(|run| run.start);
    sorted.is_sorted_by(|one, next| one.end <= next.start)
}

/// The most bytes that disjoint ranges of `memory` bytes encode to.
#[must_use]
pub fn longest(memory: u64) -> u64 {
    memory.div_ceil(PAGE) * LEN as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: u64 = 100 * PAGE;

    fn decode(bytes: &[u8], memory: u64) -> Option<Vec<Range<u64>>> {
        let mut runs = Vec::new();
        add(bytes, memory, &mut runs)?;
        are_apart(&runs).then_some(runs)
    }

    #[test]
    fn encoded_list_decodes_in_its_order() {
        let runs = [7 * PAGE..10 * PAGE, 99 * PAGE..100 * PAGE, 0..PAGE];
        let bytes: Vec<u8> = encode(&runs).collect();
        assert_eq!(bytes.len(), runs.len() * LEN);
        assert_eq!(decode(&bytes, MEMORY).as_deref(), Some(&runs[..]));
        assert_eq!(decode(&bytes[..LEN * 2 + 3], MEMORY), None, "half a range");
        assert_eq!(decode(&[], MEMORY), Some(Vec::new()));
    }

    #[test]
    fn list_with_missing_or_repeated_pages_is_refused() {
        for runs in [[0..PAGE, 0..PAGE], [0..PAGE, 99 * PAGE..101 * PAGE], [PAGE..PAGE, 0..PAGE]] {
            let bytes: Vec<u8> = encode(&runs).collect();
            assert_eq!(decode(&bytes, MEMORY), None, "{runs:?}");
        }
    }
}
