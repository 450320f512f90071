//! Bounds of an index: all small tables, and all kinds of entries with lengths and places at their limits.

use super::*;

/// Numbers at the limits of fields of 24 and 32 bits.
fn limits(bits: u32) -> impl Iterator<Item = u32> + Clone {
    let top = if bits == 32 { u32::MAX } else { (1 << bits) - 1 };
    (0..bits).flat_map(|bit| [1 << bit, (1 << bit) - 1]).chain([top])
}

#[test]
fn entry_of_any_kind_is_refused_or_encodes_to_its_bytes() {
    for kind in 0..=u8::MAX {
        for place in limits(32) {
            for len in limits(LEN_BITS) {
                for checksum in [0, 1, u64::MAX] {
                    let mut bytes = [0; ENTRY];
                    bytes[..4].copy_from_slice(&place.to_le_bytes());
                    bytes[4..8].copy_from_slice(&(u32::from(kind) << LEN_BITS | len).to_le_bytes());
                    bytes[8..].copy_from_slice(&checksum.to_le_bytes());
                    let known = match kind {
                        0 => bytes == [0; ENTRY],
                        1..=3 => true,
                        SAME => len == 0,
                        _ => false,
                    };
                    let decoded = IndexEntry::from_bytes(&bytes);
                    assert_eq!(decoded.is_some(), known, "{bytes:?}");
                    assert!(decoded.is_none_or(|entry| entry.to_bytes() == bytes), "{bytes:?}");
                }
            }
        }
    }
}

#[test]
fn table_of_any_order_is_refused_unless_blocks_follow_each_other() {
    const MOST: u64 = 4;
    for number in 0..MOST.pow(4) {
        let digit = |place: u32| number / MOST.pow(place) % MOST;
        let (begins, data_len) = ([digit(0), digit(1), digit(2)], digit(3));
        let mut bytes = vec![0; 3 * ITEM];
        for (item, begins) in bytes.chunks_mut(ITEM).zip(begins) {
            item[8..].copy_from_slice(&begins.to_le_bytes());
        }
        let mut table = BlockTable::default();
        table.push(&bytes);
        let ends = [begins[1], begins[2], data_len];
        let right = begins[0] == 0 && begins.iter().zip(ends).all(|(begins, ends)| *begins <= ends);
        assert_eq!(table.check(data_len).is_ok(), right, "{begins:?} of {data_len}");
    }
}

/// A block of four chunks of two lengths each, or none. All lengths of its data are tried.
#[test]
fn block_is_accepted_only_if_its_entries_fill_its_data() {
    let geometry = Geometry::new(4 * 4096, 4096).unwrap();
    let lens = [0, 1, 4095];
    for number in 0..81_usize {
        let entry = |chunk: u32| lens[number / 3_usize.pow(chunk) % 3];
        let mut builder = IndexBuilder::default();
        (0..4).map(entry).for_each(|len| match len {
            0 => builder.zero(),
            len => builder.stored(Encoding::Lz4, len, 7),
        });
        let right = builder.data_len();
        let (blocks, bytes) = builder.finish();
        let mut table = BlockTable::default();
        table.push(&bytes);
        for data_len in [right.saturating_sub(1), right, right + 1] {
            let block = blocks[..BLOCK].to_vec().into_boxed_slice().try_into().unwrap();
            let found = IndexBlock::new(block, 0, &geometry, &table, data_len);
            assert_eq!(found.is_ok(), data_len == right, "{number}: {data_len} of {right}");
        }
    }
}

#[test]
fn chunks_of_any_memory_cover_it_once() {
    for chunk_len in [4 << 10, 8 << 10, 1 << 20, 2 << 20] {
        for memory in (1..=600_u64).map(|pages| pages * 4096).chain([1, 4095, 4097]) {
            let geometry = Geometry::new(memory, chunk_len).unwrap();
            let ranges: Vec<_> = (0..geometry.chunks()).map(|chunk| geometry.range(chunk)).collect();
            assert!(ranges.array_windows().all(|[one, next]| one.end == next.start), "{memory} {chunk_len}");
            assert_eq!((ranges[0].start, ranges[ranges.len() - 1].end), (0, memory));
            assert!(ranges.iter().all(|range| range.start < range.end));
            let entries: u32 = (0..geometry.blocks()).map(|block| geometry.entries_of(block)).sum();
            assert_eq!(entries, geometry.chunks());
        }
    }
}
