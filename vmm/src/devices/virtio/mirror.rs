//! A copy of guest memory with a test driver's writes alone. A difference is a write of the device, and must
//! have gone through the gate in [`crate::memory::own_writes`]: otherwise a snapshot would miss it.

use std::sync::Mutex;

use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap, GuestRegionMmap};

use crate::memory::PAGE;
use crate::memory::dirty::populated::private_pages;
use crate::memory::files::data::data_ranges;
use crate::memory::page_set::PageSet;
use crate::memory::ram::GuestRam;
use crate::sync::lock;

/// The first region of memory and its copy.
#[derive(Debug)]
pub(crate) struct Mirror {
    ram: GuestRam,
    /// The memory without the gate.
    unmarked: GuestMemoryMmap,
    expected: Mutex<Vec<u8>>,
}

impl Mirror {
    /// Copies memory. From now on the driver writes through the mirror.
    #[allow(unsafe_code)]
    pub(crate) fn new(ram: &GuestRam) -> Self {
        ram.watch_own_writes();
        let first = ram.regions()[0];
        let region = MmapRegionBuilder::new_with_bitmap(first.len as usize, ())
            .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
            .with_mmap_flags(libc::MAP_NORESERVE);
        // SAFETY: it lies in the reservation, which `ram` keeps.
        let region = unsafe { region.with_raw_mmap_pointer(ram.host_address(&first)) }.build().unwrap();
        let region = GuestRegionMmap::new(region, GuestAddress(0)).unwrap();
        let unmarked = GuestMemoryMmap::from_regions(vec![region]).unwrap();
        let mirror = Self { ram: ram.clone(), unmarked, expected: Mutex::new(vec![0; first.len as usize]) };
        mirror.each_page(|at, page| lock(&mirror.expected)[at..at + page.len()].copy_from_slice(page));
        mirror
    }

    /// Writes as the driver.
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) {
        let mut expected = lock(&self.expected);
        self.unmarked.write_slice(bytes, GuestAddress(at)).unwrap();
        expected[at as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    /// Asserts that each page that the device wrote is marked. The device must be idle.
    pub(crate) fn check(&self) {
        let mut marked = PageSet::none(self.ram.len());
        self.ram.take_own_writes(&mut marked);
        self.each_page(|at, page| {
            let expected = &lock(&self.expected)[at..at + page.len()];
            assert!(page == expected || marked.has(at as u64), "a write to {at:#x} that is not marked");
        });
    }

    /// Calls `act` with each page that may not be zero.
    fn each_page(&self, mut act: impl FnMut(usize, &[u8])) {
        let end = self.ram.regions()[0].len;
        let mut pages = private_pages(&self.ram).unwrap();
        data_ranges(&self.ram.base().file, end).unwrap().into_iter().for_each(|range| pages.add(range));
        let mut page = [0; PAGE as usize];
        for at in pages.page_ranges().flat_map(|run| run.step_by(PAGE as usize)).take_while(|at| *at < end) {
            self.unmarked.read_slice(&mut page, GuestAddress(at)).unwrap();
            act(at as usize, &page);
        }
    }
}

#[test]
#[should_panic(expected = "a write to 0x5000 that is not marked")]
fn write_around_the_gate_is_noticed() {
    let ram = GuestRam::reserve(8 << 20).unwrap();
    crate::memory::backing::Backing::Fresh.map(&ram).unwrap();
    let mirror = Mirror::new(&ram);
    mirror.write(0x4000, b"the driver's");
    ram.guest().write_slice(b"marked", GuestAddress(0x6000)).unwrap();
    mirror.check();
    mirror.unmarked.write_slice(b"a device's", GuestAddress(0x5000)).unwrap();
    mirror.check();
}
