//! Page tables of the 64-bit entry: an identity mapping of the first 4 GiB.
//!
//! boot.rst demands mappings of the kernel, the zero page and the command line, which all lie there. Pages
//! are of 2 MiB, since some processors have none of 1 GiB.

use vm_memory::GuestMemory;

use crate::error::Error;
use crate::guest::write;
use crate::layout::{MMIO_HOLE_END, PAGE_TABLES};

const TABLE: u64 = 4096;
const ENTRIES: u64 = 512;
const LARGE_PAGE: u64 = 2 << 20;
const DIRECTORIES: u64 = MMIO_HOLE_END / (ENTRIES * LARGE_PAGE);

const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const LARGE: u64 = 1 << 7;

/// Writes the tables; the PML4 is at [`PAGE_TABLES`].
pub(crate) fn place<M: GuestMemory>(memory: &M) -> Result<(), Error> {
    let pointers = PAGE_TABLES + TABLE;
    let directories = pointers + TABLE;
    let pml4 = [pointers | PRESENT | WRITABLE];
    let pdpt = (0..DIRECTORIES).map(|n| (directories + n * TABLE) | PRESENT | WRITABLE);
    let pages = (0..DIRECTORIES * ENTRIES).map(|n| (n * LARGE_PAGE) | PRESENT | WRITABLE | LARGE);
    write_table(memory, PAGE_TABLES, pml4.into_iter())?;
    write_table(memory, pointers, pdpt)?;
    write_table(memory, directories, pages)
}

fn write_table<M: GuestMemory>(
    memory: &M,
    address: u64,
    entries: impl Iterator<Item = u64>,
) -> Result<(), Error> {
    write(memory, "page tables", address, &entries.flat_map(u64::to_le_bytes).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

    #[test]
    fn every_address_below_4_gib_translates_to_itself() {
        let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap();
        place(&memory).unwrap();
        let entry = |table: u64, index: u64| -> u64 {
            memory.read_obj(GuestAddress((table & !0xfff) + (index & 511) * 8)).unwrap()
        };
        for address in [0, 0x20_0000, 0x1234_5678, 0xbfff_ffff, 0xc000_0000, 0xffff_ffff_u64] {
            let pdpt = entry(PAGE_TABLES, address >> 39);
            let directory = entry(pdpt, address >> 30);
            let page = entry(directory, address >> 21);
            assert_eq!([pdpt & 3, directory & 3, page & 0x83], [3, 3, 0x83]);
            assert_eq!((page & !0x1f_ffff) | (address & 0x1f_ffff), address);
        }
        assert_eq!(entry(entry(PAGE_TABLES, 0), 4), 0, "nothing above 4 GiB");
    }
}
