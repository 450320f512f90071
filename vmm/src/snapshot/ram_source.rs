//! A guest's RAM, as something that can be packed.

use std::ops::Range;

use super::pack::Source;
use super::writer::read;
use crate::error::Result;
use crate::memory::ram::GuestRam;

/// The RAM of a guest that does not run.
#[derive(Debug)]
pub struct RamSource<'a> {
    ram: &'a GuestRam,
    populated: Vec<Range<u64>>,
}

impl<'a> RamSource<'a> {
    /// `populated` is what `memory::populated` says of it.
    pub fn new(ram: &'a GuestRam, populated: Vec<Range<u64>>) -> Self {
        Self { ram, populated }
    }
}

impl Source for RamSource<'_> {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let end = offset + into.len() as u64;
        self.ram.regions().iter().try_for_each(|region| {
            let (from, to) = (region.offset.max(offset), (region.offset + region.len).min(end));
            if from >= to {
                return Ok(());
            }
            read(self.ram.guest(), region, from, &mut into[(from - offset) as usize..(to - offset) as usize])
        })
    }

    fn populated(&self) -> &[Range<u64>] {
        &self.populated
    }
}

#[cfg(test)]
mod tests {
    use vm_memory::{Bytes, GuestAddress};

    use super::*;
    use crate::memory::backing::Backing;

    #[test]
    fn a_stretch_over_the_hole_in_guest_addresses_is_one() {
        let ram = GuestRam::reserve(4 << 30).unwrap();
        let _base = Backing::Fresh.map(&ram).unwrap();
        ram.guest().write_obj(1u8, GuestAddress((3 << 30) - 1)).unwrap();
        ram.guest().write_obj(2u8, GuestAddress(4 << 30)).unwrap();
        let source = RamSource::new(&ram, Vec::new());
        let mut bytes = [9; 4];
        source.read_at((3 << 30) - 2, &mut bytes).unwrap();
        assert_eq!(bytes, [0, 1, 2, 0]);
    }
}
