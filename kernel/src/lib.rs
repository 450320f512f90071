//! Everything about the guest kernel, and nothing about KVM: takes a kernel image, an initrd, a command line and a
//! description of the platform, writes them into guest memory, and answers with the registers the boot vCPU starts with.
//!
//! ```text
//! Payload (files, command line) ─┐
//!                                ├─> load() ──> guest memory + EntryState ──> the VMM puts it into vCPU 0
//! Platform (vCPUs, ACPI, AML)  ──┘
//! ```
//!
//! An ELF kernel with a PVH note is entered as PVH; other ELF kernels and bzImages through the 64-bit Linux boot
//! protocol.

mod acpi;
mod boot_params;
mod bzimage;
mod cmdline;
mod elf;
pub mod entry;
pub mod error;
mod file;
mod gdt;
mod guest;
mod image;
mod initrd;
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

/// What boots.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a> {
    /// The kernel: ELF or bzImage.
    pub kernel: &'a NamedFile,
    /// The initial RAM file system.
    pub initrd: Option<&'a NamedFile>,
    /// The kernel command line: ASCII, without NUL.
    pub cmdline: &'a str,
}

/// Loads the kernel and all that it is handed into guest memory, which must be RAM regions as
/// [`layout::ram_ranges`] has them and hold zeros, and answers with the registers that the boot vCPU starts with.
///
/// Nothing is written before the whole payload is checked, so that an error about the payload leaves guest memory as
/// it was.
///
/// # Errors
/// Every [`Error`] names the file or the field and what is wrong with it.
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
mod hostile_tests;
#[cfg(test)]
mod load_tests;
#[cfg(test)]
mod testing;
