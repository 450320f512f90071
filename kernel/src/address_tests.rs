//! Checks of guest addresses: all ranges of a small address space, against a list of its units.

use std::ops::Range;

use crate::error::Role;
use crate::file::Source;
use crate::image::place;
use crate::layout::{BOOT_STRUCTURES_END, HIMEM, LOW_RAM_END, MMIO_HOLE_END, MMIO_HOLE_START};
use crate::ram::Ram;
use crate::testing::{guest, named};

/// Units of the small space, and their length. The first MiB has two, and RAM ends before the last two.
const UNITS: u64 = 8;
const UNIT: u64 = HIMEM / 2;

fn all_ranges() -> impl Iterator<Item = Range<u64>> {
    (0..=UNITS).flat_map(|start| (start..=UNITS).map(move |end| start * UNIT..end * UNIT))
}

fn units(range: &Range<u64>) -> impl Iterator<Item = u64> {
    range.start / UNIT..range.end / UNIT
}

#[test]
fn free_ram_of_all_bounds_and_holes_equals_a_list_of_units() {
    let memory = guest((UNITS - 2) * UNIT);
    let ram = Ram::of(&memory).unwrap();
    for bounds in all_ranges() {
        for one in all_ranges() {
            for other in all_ranges().step_by(5) {
                let free = ram.free(&bounds, &[one.clone(), other.clone()]);
                assert!(free.iter().all(|gap| gap.start < gap.end));
                let found: Vec<_> = free.iter().flat_map(units).collect();
                let taken =
                    |unit: &u64| [&one, &other].into_iter().any(|hole| units(hole).any(|at| at == *unit));
                let wanted: Vec<_> =
                    units(&bounds).filter(|unit| *unit < UNITS - 2 && !taken(unit)).collect();
                assert_eq!(found, wanted, "{bounds:x?} without {one:x?} and {other:x?}");
            }
        }
    }
}

#[test]
fn all_ranges_lie_in_ram_or_do_not() {
    let memory = guest((UNITS - 2) * UNIT);
    let ram = Ram::of(&memory).unwrap();
    for range in all_ranges() {
        let inside = range.end <= (UNITS - 2) * UNIT;
        assert_eq!(ram.contains(&range), inside, "{range:x?}");
    }
}

/// A guest with RAM on both sides of the hole: ranges between all borders, and one byte beside them.
#[test]
fn part_of_a_kernel_is_placed_only_where_all_of_it_is_free_ram() {
    const TOP: u64 = MMIO_HOLE_END + (1 << 20);
    let ranges = [(0, MMIO_HOLE_START), (MMIO_HOLE_END, TOP)];
    let ram = Ram::new(ranges.map(|(start, end)| start..end).into_iter()).unwrap();
    let kernel = named("/k", b"kernel");
    let source = Source::new(Role::Kernel, &kernel).unwrap();
    let borders =
        [0, BOOT_STRUCTURES_END, LOW_RAM_END, HIMEM, MMIO_HOLE_START, MMIO_HOLE_END, TOP, 1 << 63, u64::MAX];
    let near: Vec<u64> =
        borders.iter().flat_map(|at| [at.saturating_sub(1), *at, at.saturating_add(1)]).collect();
    for &start in &near {
        for &end in &near {
            // An empty part occupies nothing, and ELF segments without memory are left out.
            if start == end {
                continue;
            }
            let length = end.wrapping_sub(start);
            let placed = place(&source, &ram, "part", start, length);
            let low = BOOT_STRUCTURES_END <= start && end <= LOW_RAM_END;
            let high = HIMEM <= start && end <= MMIO_HOLE_START;
            let possible = start < end && (low || high);
            assert_eq!(placed.is_ok(), possible, "{start:#x}..{end:#x}: {placed:x?}");
            if let Ok(range) = placed {
                assert_eq!(range, start..end);
            }
        }
    }
}
