//! Everything about the guest kernel, and nothing about KVM: takes a kernel image, an initrd, a command line and a
//! description of the platform, writes them into guest memory, and answers with the registers the boot vCPU starts with.
//!
//! ```text
//! Payload (files, command line) ─┐
//!                                ├─> load() ──> guest memory + EntryState ──> the VMM puts it into vCPU 0
//! Platform (vCPUs, ACPI, AML)  ──┘
//! ```

pub mod entry;

pub use entry::{EntryState, Segment};
