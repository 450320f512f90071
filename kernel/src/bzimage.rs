//! bzImage kernels (Documentation/x86/boot.rst), entered at their 64-bit entry point.
//!
//! The file has a real-mode part, which is skipped but for its setup header, and a protected-mode part, which
//! decompresses the kernel. A relocatable kernel goes to its preferred address, so that it need not move
//! itself.

use std::ops::Range;

use linux_loader::loader::bootparam::{LOADED_HIGH, XLF_CAN_BE_LOADED_ABOVE_4G, XLF_KERNEL_64, setup_header};
use vm_memory::ByteValued;

use crate::error::Error;
use crate::file::Source;
use crate::image::{Entry, Image, Piece, place};
use crate::layout::{COMMAND_LINE_SIZE, HIMEM, MMIO_HOLE_START};
use crate::ram::Ram;

/// The magic number at [`MAGIC_RANGE`].
pub(crate) const MAGIC: &[u8] = b"HdrS";
/// Offsets of the magic number in the file.
pub(crate) const MAGIC_RANGE: Range<usize> = 0x202..0x206;
/// Length of the file's beginning that identifies a bzImage.
pub(crate) const MAGIC_END: usize = MAGIC_RANGE.end;

/// Offset of the setup header, in the file and in the zero page.
pub(crate) const SETUP_HEADER: usize = 0x1f1;
/// Highest end of the setup header: the offset of `edd_mbr_sig_buffer` in the zero page.
pub(crate) const SETUP_HEADER_END: usize = 0x290;
/// The first version whose header has `xloadflags`.
const OLDEST_VERSION: u16 = 0x20c;
const SECTOR: u64 = 512;
const BOOT_FLAG: u16 = 0xaa55;
/// Offset of the 64-bit entry point in the protected-mode part.
const ENTRY_64: u64 = 0x200;

/// Checks a bzImage kernel.
pub(crate) fn inspect(source: &Source<'_>, ram: &Ram) -> Result<Image, Error> {
    let (header, bytes) = read_header(source)?;
    let (version, alignment) = (header.version, u64::from(header.kernel_alignment));
    if version < OLDEST_VERSION {
        let (major, minor) = (version >> 8, version & 0xff);
        return Err(source.problem(format!(
            "is a bzImage of boot protocol {major}.{minor:02}; the 64-bit entry takes 2.12 or newer"
        )));
    }
    if header.boot_flag != BOOT_FLAG {
        return Err(
            source.problem(format!("its bzImage boot flag is {:#x}, not 0xaa55", { header.boot_flag }))
        );
    }
    if header.loadflags & LOADED_HIGH == 0 {
        return Err(source.problem("is a zImage, which loads below 1 MiB, not a bzImage"));
    }
    if header.xloadflags & XLF_KERNEL_64 == 0 {
        return Err(source.problem("is a 32-bit bzImage, without a 64-bit entry point"));
    }

    let part = "protected-mode kernel";
    let sectors = if header.setup_sects == 0 { 4 } else { u64::from(header.setup_sects) };
    let offset = (sectors + 1) * SECTOR;
    source.check(part, offset, (u64::from(header.syssize) * 16).max(ENTRY_64 + 1))?;
    let length = source.length() - offset;
    let address = if header.relocatable_kernel != 0 { header.pref_address } else { HIMEM };
    if header.relocatable_kernel != 0 && (!alignment.is_power_of_two() || address % alignment != 0) {
        return Err(source.problem(format!(
            "its preferred address {address:#x} is not aligned to its kernel alignment {alignment:#x}"
        )));
    }
    let range = place(source, ram, part, address, u64::from(header.init_size).max(length))?;
    let mut pieces = vec![Piece { part: part.into(), offset, length, address }];
    pieces.retain(|piece| piece.length > 0);
    Ok(Image {
        entry: Entry::Linux64 { address: address + ENTRY_64, setup_header: Some(bytes) },
        pieces,
        occupied: vec![range],
        command_line_limit: (header.cmdline_size as usize).min(COMMAND_LINE_SIZE as usize - 1),
        initrd_limit: (u64::from(header.initrd_addr_max) + 1).min(MMIO_HOLE_START),
        initrd_above_4g: header.xloadflags & XLF_CAN_BE_LOADED_ABOVE_4G != 0,
    })
}

/// Reads the setup header, as the known fields and as all its bytes. The byte at 0x201 gives its end.
fn read_header(source: &Source<'_>) -> Result<(setup_header, Vec<u8>), Error> {
    let part = "bzImage setup header";
    let mut jump = [0; 2]; // a short jump over the header: opcode, distance
    source.read(part, 0x200, &mut jump)?;
    let end = 0x202 + usize::from(jump[1]);
    let known = size_of::<setup_header>();
    let mut bytes = vec![0; end.clamp(MAGIC_END, SETUP_HEADER_END) - SETUP_HEADER];
    source.read(part, SETUP_HEADER as u64, &mut bytes)?;
    let mut header = setup_header::default();
    let shared = known.min(bytes.len());
    header.as_mut_slice()[..shared].copy_from_slice(&bytes[..shared]);
    Ok((header, bytes))
}

#[cfg(test)]
mod tests;
