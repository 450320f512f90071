//! The layouts of disks of all sizes.

use proptest::prelude::*;

use super::super::{LARGEST, SMALLEST};
use super::*;

/// Lists the blocks of all metadata and files, in order.
fn regions(layout: &Layout) -> Vec<Range<u64>> {
    let run = |start: u64, len: u32| start..start + u64::from(len);
    let mut regions = vec![layout.journal(), run(layout.directory(0), layout.directories)];
    for group in 0..layout.groups() {
        regions.push(run(layout.start(group), layout.copy(group)));
        regions.push(run(layout.block_bitmap(group), 1));
        regions.push(run(layout.inode_bitmap(group), 1));
        regions.push(run(layout.inode_table(group), layout.table()));
    }
    regions.retain(|region| !region.is_empty());
    regions.sort_unstable_by_key(|region| region.start);
    regions
}

fn check(size: u64, directories: u32) {
    let layout = Layout::new(size, directories);
    let mut used = vec![0; layout.groups() as usize];
    let mut end = 0;
    for region in regions(&layout) {
        assert!(end <= region.start, "{size}: {region:?} overlaps the one before it");
        end = region.end;
        let [first, last] = [region.start, region.end - 1].map(|block| block / u64::from(GROUP));
        assert_eq!(first, last, "{size}: {region:?} lies in two groups");
        used[first as usize] += (region.end - region.start) as u32;
    }
    assert!(end <= layout.blocks(), "{size}: metadata exceed the disk");
    let lost = size / BLOCK as u64 - layout.blocks();
    assert!(lost < u64::from(GROUP), "{size}: {lost} blocks are left out");
    for group in 0..layout.groups() {
        assert_eq!(used[group as usize], layout.used(group), "{size}: used blocks of group {group}");
        assert!(layout.used(group) <= layout.blocks_in(group), "{size}: group {group}");
    }
    let inodes = u64::from(layout.inodes_per_group());
    assert!(inodes.is_multiple_of(16) && inodes <= u64::from(GROUP), "{size}: {inodes} inodes a group");
    assert!(inodes * u64::from(layout.groups()) > u64::from(layout.used_inodes(0)), "{size}");
    assert!(layout.groups_per_run().is_power_of_two());
}

#[test]
fn layout_of_each_boundary_has_no_overlap() {
    const MIB: u64 = 1 << 20;
    let boundaries = [8, 127, 128, 129, 512, 1 << 10, 2 << 10, 16 << 10, 1 << 20, 4 << 20, 16 << 20];
    for size in boundaries.map(|size| size * MIB) {
        for size in [size - BLOCK as u64, size, size + BLOCK as u64] {
            if (SMALLEST..=LARGEST).contains(&size) {
                check(size, 4);
            }
        }
    }
}

#[test]
fn last_group_without_room_is_left_out() {
    let group = u64::from(GROUP) * BLOCK as u64;
    // A superblock and a block of descriptors begin group 1.
    let least = u64::from(2 + LEAST_CONTENT) * BLOCK as u64;
    assert_eq!(Layout::new(group + least - 1, 2).groups(), 1);
    assert_eq!(Layout::new(group + least, 2).groups(), 2);
    // Group 16 begins with its bitmaps and its inode table.
    assert_eq!(Layout::new(16 * group + (2 << 20), 2).groups(), 16);
    assert_eq!(Layout::new(16 * group + (3 << 20), 2).groups(), 17);
}

#[test]
fn copies_are_in_powers_of_three_primes_or_in_group_1() {
    let copies = |size: u64| {
        let layout = Layout::new(size, 2);
        (0..layout.groups()).filter(|group| layout.has_copy(*group)).collect::<Vec<_>>()
    };
    assert_eq!(copies(16 << 30), [0, 1, 3, 5, 7, 9, 25, 27, 49, 81, 125]);
    assert_eq!(copies(16 << 40), [0, 1]);
}

#[test]
fn larger_disk_has_no_fewer_inodes() {
    let inodes = |size: u64| {
        let layout = Layout::new(size, 2);
        layout.groups() * layout.inodes_per_group()
    };
    for shift in 23..44 {
        assert!(inodes(1 << shift) <= inodes(2 << shift), "{shift}");
    }
    assert_eq!(inodes(8 << 20), 2048);
    assert_eq!(inodes(64 << 20), 16_384);
    assert_eq!(inodes(10 << 30), 655_360);
    assert_eq!(inodes(16 << 40), 1 << 28);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn layout_of_any_size_has_no_overlap(
        shift in 23_u32..44,
        rest in any::<u64>(),
        directories in 2_u32..338,
    ) {
        let size = (1 << shift) + rest % (1 << shift);
        check(size, directories);
    }
}
