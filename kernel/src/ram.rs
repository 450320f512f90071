//! Guest RAM: its ranges, the free gaps in them, and the memory map for the kernel.

use std::ops::Range;

use vm_memory::{Address, GuestMemory, GuestMemoryBackend, GuestMemoryRegion};

use crate::error::{Error, Size};
use crate::layout::{HIMEM, LOW_RAM_END};

/// `E820_TYPE_RAM`, and the same number in PVH's map.
pub(crate) const MAP_RAM: u32 = 1;
/// `E820_TYPE_RESERVED`, and the same number in PVH's map.
pub(crate) const MAP_RESERVED: u32 = 2;
/// Most entries of the memory map: `E820_MAX_ENTRIES_ZEROPAGE`, less the one that Linux adds after a PVH
/// entry.
const MAP_LIMIT: usize = 127;

/// An entry of the memory map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MapEntry {
    /// Guest physical address.
    pub(crate) start: u64,
    /// Length in bytes.
    pub(crate) length: u64,
    /// [`MAP_RAM`] or [`MAP_RESERVED`].
    pub(crate) kind: u32,
}

/// The RAM ranges of a guest: sorted and merged; the first covers the low 1 MiB.
#[derive(Debug)]
pub(crate) struct Ram {
    ranges: Vec<Range<u64>>,
}

impl Ram {
    /// Collects the RAM ranges of `memory`.
    ///
    /// # Errors
    /// [`Error::NoLowMemory`] if the first MiB is not all RAM.
    pub(crate) fn of<M: GuestMemory>(memory: &M) -> Result<Self, Error> {
        let physical = memory.physical_memory().ok_or(Error::NoLowMemory)?;
        Self::new(physical.iter().map(|region| {
            let start = region.start_addr().raw_value();
            start..start.saturating_add(region.len())
        }))
    }

    /// Makes RAM of any ranges.
    pub(crate) fn new(ranges: impl Iterator<Item = Range<u64>>) -> Result<Self, Error> {
        let mut sorted: Vec<_> = ranges.filter(|range| !range.is_empty()).collect();
        sorted.sort_by_key(|range| range.start);
        let mut ranges: Vec<Range<u64>> = Vec::with_capacity(sorted.len());
        for range in sorted {
            match ranges.last_mut() {
                Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
                _ => ranges.push(range),
            }
        }
        let ram = Self { ranges };
        if ram.contains(&(0..HIMEM)) { Ok(ram) } else { Err(Error::NoLowMemory) }
    }

    /// Size of all RAM.
    pub(crate) fn size(&self) -> Size {
        Size(self.ranges.iter().map(|range| range.end - range.start).sum())
    }

    /// Returns whether all of `wanted` is RAM.
    pub(crate) fn contains(&self, wanted: &Range<u64>) -> bool {
        self.ranges.iter().any(|range| range.start <= wanted.start && wanted.end <= range.end)
    }

    /// Returns the RAM within `bounds` that is not `taken`, lowest first.
    pub(crate) fn free(&self, bounds: &Range<u64>, taken: &[Range<u64>]) -> Vec<Range<u64>> {
        let within = |range: &Range<u64>| range.start.max(bounds.start)..range.end.min(bounds.end);
        let mut free: Vec<_> = self.ranges.iter().map(within).collect();
        for hole in taken {
            free = free
                .into_iter()
                .flat_map(|gap| {
                    [gap.start..gap.end.min(hole.start.max(gap.start)), gap.start.max(hole.end)..gap.end]
                })
                .collect();
        }
        free.retain(|gap| !gap.is_empty());
        free
    }

    /// Makes the memory map: all RAM, with the BIOS area, where the ACPI tables lie, reserved.
    ///
    /// # Errors
    /// [`Error::MemoryMapTooLong`] if RAM has more ranges than a kernel accepts.
    pub(crate) fn map(&self) -> Result<Vec<MapEntry>, Error> {
        let bios = LOW_RAM_END..HIMEM;
        let entry =
            |range: Range<u64>, kind| MapEntry { start: range.start, length: range.end - range.start, kind };
        let mut map: Vec<_> = self
            .free(&(0..u64::MAX), std::slice::from_ref(&bios))
            .into_iter()
            .map(|range| entry(range, MAP_RAM))
            .collect();
        map.insert(1, entry(bios, MAP_RESERVED));
        if map.len() > MAP_LIMIT {
            return Err(Error::MemoryMapTooLong { entries: map.len(), limit: MAP_LIMIT });
        }
        Ok(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::ram_ranges;

    fn ram(bytes: u64) -> Ram {
        Ram::new(ram_ranges(bytes).into_iter().map(|(start, length)| start..start + length)).unwrap()
    }

    #[test]
    fn adjacent_ranges_merge_in_any_order() {
        let ram = Ram::new([0x20_0000..0x30_0000, 0..0x20_0000, 1 << 32..(1 << 32) + 5].into_iter()).unwrap();
        assert!(ram.contains(&(0..0x30_0000)));
        assert!(!ram.contains(&(0x2f_ffff..0x30_0001)));
        assert_eq!(ram.size(), Size(0x30_0005));
    }

    #[test]
    fn memory_without_a_low_megabyte_is_refused() {
        for ranges in [[0..0, 0..0], [0..HIMEM - 1, 0..0], [4096..1 << 30, 0..0], [0..4096, 8192..1 << 30]] {
            assert!(matches!(Ram::new(ranges.into_iter()), Err(Error::NoLowMemory)));
        }
    }

    #[test]
    fn map_of_a_4_gib_guest_has_a_hole_and_a_bios_area() {
        let map: Vec<_> =
            ram(4 << 30).map().unwrap().iter().map(|e| (e.start, e.start + e.length, e.kind)).collect();
        assert_eq!(
            map,
            [(0, 0x9fc00, 1), (0x9fc00, 0x100000, 2), (0x100000, 3 << 30, 1), (4 << 30, 5 << 30, 1)]
        );
        assert_eq!(ram(HIMEM).map().unwrap().len(), 2);
    }

    #[test]
    fn taken_ranges_are_not_free() {
        let ram = ram(1 << 30);
        let bounds = HIMEM..1 << 29;
        assert_eq!(ram.free(&bounds, &[]), std::slice::from_ref(&bounds));
        assert_eq!(ram.free(&bounds, std::slice::from_ref(&bounds)), []);
        assert_eq!(
            ram.free(&bounds, &[0x20_0000..0x30_0000, 0x28_0000..0x40_0000, 0..0x18_0000]),
            [0x18_0000..0x20_0000, 0x40_0000..1 << 29]
        );
        assert_eq!(ram.free(&(5 << 30..6 << 30), &[]), []);
    }
}
