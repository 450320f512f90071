//! Loads a guest kernel. This crate knows no KVM.
//!
//! [`load`] writes a kernel image, an initrd, a command line and platform tables into guest memory. It
//! returns the registers of the boot vCPU.
//!
//! ```text
//! Payload (files, command line) ─┐
//!                                ├─> load() ──> guest memory + EntryState ──> the VMM puts it into vCPU 0
//! Platform (vCPUs, ACPI, AML)  ──┘
//! ```
//!
//! PVH enters an ELF kernel that has a PVH note. The 64-bit Linux boot protocol enters other ELF kernels and
//! bzImages.

mod acpi;
mod boot_params;
mod bzimage;
pub mod cmdline;
mod elf;
pub mod entry;
pub mod error;
mod file;
mod gdt;
mod guest;
mod image;
pub mod initrd;
pub mod layout;
mod mp_table;
mod paging;
pub mod power;
mod pvh;
mod ram;
mod recognise;

pub use acpi::{Platform, guest_aml};
pub use acpi_tables;
pub use entry::{EntryState, Segment};
pub use error::Error;
pub use file::NamedFile;
pub use power::{S5_SLEEP_TYPE, SLEEP_ENABLE};

use error::Role;
use file::Source;
use image::Entry;
use ram::Ram;
use vm_memory::GuestMemory;

/// The files and the command line of a guest.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a> {
    /// The kernel: ELF or bzImage.
    pub kernel: &'a NamedFile,
    /// The initial RAM file system.
    pub initrd: Option<&'a NamedFile>,
    /// The kernel command line: ASCII, without NUL.
    pub cmdline: &'a str,
}

/// Loads the kernel and its boot structures into guest memory, and returns the registers of the boot vCPU.
///
/// `memory` must hold zeros and consist of the regions that [`layout::ram_ranges`] returns.
///
/// The payload is checked before the first write: an error about the payload leaves guest memory unchanged.
///
/// # Errors
/// Every [`Error`] names the file or the field, and its fault.
pub fn load<M: GuestMemory>(
    memory: &M,
    payload: &Payload<'_>,
    platform: &Platform,
) -> Result<EntryState, Error> {
    let ram = Ram::of(memory)?;
    let map = ram.map()?;
    let tables = acpi::build(platform)?;
    let kernel = Source::new(Role::Kernel, payload.kernel)?;
    let image = recognise::inspect(&kernel, &ram)?;
    cmdline::check(payload.cmdline, image.command_line_limit)?;
    let initrd = match payload.initrd {
        None => None,
        Some(named) => {
            let source = Source::new(Role::Initrd, named)?;
            let range = initrd::place(&source, &ram, &image)?;
            Some((source, range))
        }
    };

    image.copy(memory, &kernel)?;
    if let Some((source, range)) = &initrd {
        source.copy(memory, "content", 0, range.start, source.length())?;
    }
    cmdline::place(memory, payload.cmdline)?;
    guest::write(memory, "ACPI tables", layout::RSDP, &tables)?;
    if let Some(table) = mp_table::build(platform) {
        guest::write(memory, "MP table", layout::MP_TABLE, &table)?;
    }
    let initrd = initrd.as_ref().map(|(_, range)| range);
    match &image.entry {
        Entry::Pvh { address } => pvh::enter(memory, *address, &map, initrd),
        Entry::Linux64 { address, setup_header } => {
            boot_params::enter(memory, *address, setup_header.as_deref(), &map, initrd)
        }
    }
}

#[cfg(test)]
mod address_tests;
#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod load_tests;
#[cfg(test)]
mod testing;
