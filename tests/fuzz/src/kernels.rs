//! Kernels, and a guest's memory to load them into.

use std::cell::RefCell;

use arbitrary::Arbitrary;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use volt_kernel::{EntryState, NamedFile, Payload, Platform, layout};

use crate::files::in_memory;

/// Bytes of guest memory.
pub const MEMORY: usize = 16 << 20;
/// Memory that is closed to images, and its content.
const MARKS: [u64; 4] = [0, 0x1000, 0x3000, layout::HIMEM - 8];
const MARK: u64 = 0x5aa5_1234_fedc_9876;

thread_local! {
    /// The memory of all guests: to map and clear it anew takes longer than a load.
    static GUEST: RefCell<GuestMemoryMmap> = RefCell::new(guest());
}

fn guest() -> GuestMemoryMmap {
    GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY)]).expect("a little memory")
}

/// A guest with a kernel.
#[derive(Debug)]
pub struct Loaded {
    /// Registers of the boot vCPU.
    pub state: EntryState,
    /// The guest's memory.
    pub memory: Memory,
}

/// The memory of the guest.
#[derive(Clone, Copy, Debug)]
pub struct Memory;

impl Memory {
    /// Reads memory.
    ///
    /// # Panics
    /// The range lies outside memory.
    #[must_use]
    pub fn read(self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        GUEST.with_borrow(|guest| guest.read_slice(&mut bytes, GuestAddress(at))).expect("in memory");
        bytes
    }
}

/// Loads a kernel, or returns nothing if it is refused.
///
/// # Panics
/// An error names no file, or memory that is closed to images has changed.
#[must_use]
pub fn load(kernel: &[u8], initrd: Option<&[u8]>, cmdline: &str) -> Option<Loaded> {
    let named = |name: &str, bytes| NamedFile { name: name.into(), file: in_memory(bytes) };
    let (kernel, initrd) = (named("/k", kernel), initrd.map(|bytes| named("/i", bytes)));
    let payload = Payload { kernel: &kernel, initrd: initrd.as_ref(), cmdline };
    let platform = Platform {
        vcpus: 2,
        local_apic: layout::LOCAL_APIC as u32,
        io_apic: layout::IO_APIC as u32,
        sleep_control_port: 0x600,
        sleep_status_port: 0x601,
        reset_port: 0x602,
        reset_value: 1,
        device_aml: Vec::new(),
    };
    GUEST.with_borrow(|memory| {
        for mark in MARKS {
            memory.write_obj(MARK, GuestAddress(mark)).expect("in memory");
        }
        let loaded = volt_kernel::load(memory, &payload, &platform);
        for mark in MARKS {
            let found: u64 = memory.read_obj(GuestAddress(mark)).expect("in memory");
            assert_eq!(found, MARK, "memory at {mark:#x} has changed");
        }
        match loaded {
            Ok(state) => Some(Loaded { state, memory: Memory }),
            Err(error) => {
                let text = error.to_string();
                let names = ["kernel /k: ", "initrd /i: ", "kernel command line "];
                assert!(names.iter().any(|name| text.starts_with(name)), "{text}");
                None
            }
        }
    })
}

/// A program header and its segment.
#[derive(Clone, Debug, Arbitrary)]
pub struct Segment {
    kind: u8,
    odd_kind: u32,
    address: u32,
    odd_address: Option<u64>,
    len: u8,
    /// Bytes of memory beyond those of the file.
    more: u16,
    odd: Option<(u64, u64, u64)>,
    note: Option<(u32, u64)>,
}

impl Segment {
    fn kind(&self) -> u32 {
        match self.kind % 16 {
            0..12 => 1,
            12..15 => 4,
            _ => self.odd_kind,
        }
    }

    /// Whether its bytes are loaded as they are.
    #[must_use]
    pub fn is_loaded(&self) -> bool {
        self.kind() == 1 && self.odd.is_none()
    }

    /// Guest physical address.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.odd_address.unwrap_or(0x10_0000 + u64::from(self.address) % (15 << 20))
    }

    /// Its bytes in the file.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        match self.note {
            Some((kind, address)) if self.kind() == 4 => {
                let words = [4, 8, if kind % 2 == 0 { 18 } else { kind }].map(u32::to_le_bytes);
                [words.as_flattened(), b"Xen\0", &(address % MEMORY as u64).to_le_bytes()].concat()
            }
            _ => (0..self.len).map(|at| at | 1).collect(),
        }
    }
}

/// An ELF file of these segments.
#[must_use]
pub fn elf(is_64: bool, [kind, machine]: [u16; 2], entry: u64, segments: &[Segment]) -> Vec<u8> {
    let (header, each) = if is_64 { (64, 56) } else { (52, 32) };
    let word = |value: u64| match is_64 {
        true => value.to_le_bytes().to_vec(),
        false => (value as u32).to_le_bytes().to_vec(),
    };
    let mut file = b"\x7fELF".to_vec();
    file.extend([if is_64 { 2 } else { 1 }, 1, 1]);
    file.resize(16, 0);
    [kind, machine, 1, 0].into_iter().for_each(|half| file.extend(half.to_le_bytes()));
    file.extend([word(entry), word(header), word(0), vec![0; 4]].concat());
    let count = segments.len() as u16;
    let halves = [header as u16, each, count, 0, 0, 0];
    halves.into_iter().for_each(|half| file.extend(half.to_le_bytes()));
    let mut offset = header + u64::from(each) * u64::from(count);
    for segment in segments {
        let len = segment.bytes().len() as u64;
        let (at, in_file, in_memory) = segment.odd.unwrap_or((offset, len, len + u64::from(segment.more)));
        let fields = [at, segment.address(), segment.address(), in_file, in_memory].map(word).concat();
        file.extend(segment.kind().to_le_bytes());
        let flags = 7_u32.to_le_bytes().to_vec();
        let rest = if is_64 { [flags, fields, word(4)] } else { [fields, flags, word(4)] };
        file.extend(rest.concat());
        offset += len;
    }
    segments.iter().for_each(|segment| file.extend(segment.bytes()));
    file
}

/// A bzImage of two setup sectors and `len` bytes of kernel, which needs 1 MiB at 4 MiB.
#[must_use]
pub fn bzimage(len: usize) -> Vec<u8> {
    let mut file = vec![0; 1024];
    let mut set = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    set(0x1f1, &[1]); // setup_sects
    set(0x1f4, &32_u32.to_le_bytes()); // syssize
    set(0x1fe, &0xaa55_u16.to_le_bytes()); // boot_flag
    set(0x200, &0x6aeb_u16.to_le_bytes()); // jump
    set(0x202, b"HdrS");
    set(0x206, &0x20f_u16.to_le_bytes()); // version
    set(0x211, &[1]); // loadflags: LOADED_HIGH
    set(0x22c, &0x7fff_ffff_u32.to_le_bytes()); // initrd_addr_max
    set(0x230, &0x20_0000_u32.to_le_bytes()); // kernel_alignment
    set(0x234, &[1]); // relocatable_kernel
    set(0x236, &3_u16.to_le_bytes()); // xloadflags: 64-bit entry, may be loaded above 4 GiB
    set(0x238, &2047_u32.to_le_bytes()); // cmdline_size
    set(0x258, &0x40_0000_u64.to_le_bytes()); // pref_address
    set(0x260, &0x10_0000_u32.to_le_bytes()); // init_size
    file.extend((0..len).map(|at| (at / 3) as u8 | 1));
    file
}
