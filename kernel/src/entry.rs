//! The initial registers of the boot vCPU, independent of a hypervisor; the VMM translates them to its own.

/// A segment register with its hidden part (Intel SDM volume 3 section 3.4.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Selector: byte offset into the GDT.
    pub selector: u16,
    /// Linear base address.
    pub base: u64,
    /// Limit in bytes (the highest valid offset).
    pub limit: u32,
    /// Segment type, 4 bits.
    pub kind: u8,
    /// Descriptor type: true for code and data, false for a system segment (TSS).
    pub code_or_data: bool,
    /// Default operation size (the D/B bit).
    pub big: bool,
    /// 64-bit code segment (the L bit).
    pub long: bool,
    /// Limit counted in 4 KiB units in the descriptor (the G bit).
    pub granular: bool,
}

/// The registers of the boot vCPU at the kernel's first instruction. All others are zero, and RFLAGS is 2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryState {
    /// Guest physical address of the first instruction.
    pub rip: u64,
    /// Stack pointer; PVH starts without a stack.
    pub rsp: u64,
    /// PVH: guest physical address of `hvm_start_info`.
    pub rbx: u64,
    /// Linux boot protocol: guest physical address of the zero page (`boot_params`).
    pub rsi: u64,
    /// Control register 0.
    pub cr0: u64,
    /// Control register 3: guest physical address of the PML4, or 0 without paging.
    pub cr3: u64,
    /// Control register 4.
    pub cr4: u64,
    /// The EFER MSR.
    pub efer: u64,
    /// GDT: guest physical address.
    pub gdt_base: u64,
    /// GDT: highest valid offset.
    pub gdt_limit: u16,
    /// CS.
    pub code: Segment,
    /// DS, ES, FS, GS and SS.
    pub data: Segment,
    /// TR.
    pub task: Segment,
}
