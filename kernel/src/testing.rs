//! Small images, files and guests for tests.

use std::fs::{File, OpenOptions, remove_file};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, Ordering};

use linux_loader::loader::bootparam::{LOADED_HIGH, XLF_CAN_BE_LOADED_ABOVE_4G, XLF_KERNEL_64, setup_header};
use vm_memory::{ByteValued, Bytes, GuestAddress, GuestMemoryMmap};

use crate::{EntryState, Error, NamedFile, Payload, Platform, layout, load};

pub(crate) const LOAD: u32 = 1;
pub(crate) const INTERPRETER: u32 = 3;
pub(crate) const NOTE: u32 = 4;

/// Makes guest memory in the VMM's regions.
pub(crate) fn guest(bytes: u64) -> GuestMemoryMmap {
    let ranges: Vec<_> = layout::ram_ranges(bytes)
        .into_iter()
        .map(|(start, length)| (GuestAddress(start), length as usize))
        .collect();
    GuestMemoryMmap::from_ranges(&ranges).unwrap()
}

/// Makes an unnamed file with these bytes.
pub(crate) fn file(bytes: &[u8]) -> File {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("volt-kernel-test-{}-{number}", std::process::id()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    remove_file(path).unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file
}

/// Makes a file whose name in messages is `name`.
pub(crate) fn named(name: &str, bytes: &[u8]) -> NamedFile {
    NamedFile { name: name.into(), file: file(bytes) }
}

pub(crate) fn platform() -> Platform {
    Platform {
        vcpus: 2,
        local_apic: layout::LOCAL_APIC as u32,
        io_apic: layout::IO_APIC as u32,
        sleep_control_port: 0x600,
        sleep_status_port: 0x601,
        reset_port: 0x602,
        reset_value: 1,
        device_aml: Vec::new(),
    }
}

/// Loads a kernel named `/k` and, if given, an initrd named `/i`.
pub(crate) fn load_bytes(
    memory: &GuestMemoryMmap,
    kernel: &[u8],
    initrd: Option<&[u8]>,
    cmdline: &str,
) -> Result<EntryState, Error> {
    let kernel = named("/k", kernel);
    let initrd = initrd.map(|bytes| named("/i", bytes));
    load(memory, &Payload { kernel: &kernel, initrd: initrd.as_ref(), cmdline }, &platform())
}

/// Loads a bad kernel into a guest of 64 MiB, and returns the error's message.
pub(crate) fn refusal(kernel: &[u8]) -> String {
    load_bytes(&guest(64 << 20), kernel, None, "").unwrap_err().to_string()
}

pub(crate) fn bytes_at(memory: &GuestMemoryMmap, address: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    memory.read_slice(&mut bytes, GuestAddress(address)).unwrap();
    bytes
}

/// A program header and its segment.
#[derive(Clone)]
pub(crate) struct TestSegment {
    pub(crate) kind: u32,
    pub(crate) address: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) memory_size: u64,
}

/// An ELF file. The bytes of its segments follow the headers, one after the other.
#[derive(Clone)]
pub(crate) struct TestElf {
    pub(crate) is_64: bool,
    pub(crate) kind: u16,
    pub(crate) machine: u16,
    pub(crate) entry: u64,
    pub(crate) segments: Vec<TestSegment>,
}

impl TestElf {
    /// Makes a 64-bit kernel of 5000 bytes at 1 MiB with 3000 bytes of .bss, entered at its second byte.
    pub(crate) fn kernel() -> Self {
        let bytes = (0..5000u32).map(|n| n as u8 | 1).collect();
        Self { is_64: true, kind: 2, machine: 62, entry: 0x10_0001, segments: Vec::new() }
            .with(LOAD, 0x10_0000, bytes, 8000)
    }

    /// Makes the same kernel with a PVH entry at its third byte.
    pub(crate) fn pvh() -> Self {
        let notes = [note(b"GNU\0", 3, &[7; 20]), note(b"Xen\0", 18, &0x10_0002u64.to_le_bytes())].concat();
        Self::kernel().with(NOTE, 0, notes, 0)
    }

    pub(crate) fn with(mut self, kind: u32, address: u64, bytes: Vec<u8>, memory_size: u64) -> Self {
        self.segments.push(TestSegment { kind, address, bytes, memory_size });
        self
    }

    pub(crate) fn build(&self) -> Vec<u8> {
        let (header, entry) = if self.is_64 { (64, 56) } else { (52, 32) };
        let word = |value: u64| match self.is_64 {
            true => value.to_le_bytes().to_vec(),
            false => (value as u32).to_le_bytes().to_vec(),
        };
        let count = self.segments.len() as u16;
        let mut file = b"\x7fELF".to_vec();
        file.extend([if self.is_64 { 2 } else { 1 }, 1, 1]);
        file.resize(16, 0);
        for half in [self.kind, self.machine, 1, 0] {
            file.extend(half.to_le_bytes());
        }
        file.extend([word(self.entry), word(header), word(0), vec![0; 4]].concat());
        for half in [header as u16, entry, count, 0, 0, 0] {
            file.extend(half.to_le_bytes());
        }
        let mut offset = header + u64::from(entry) * u64::from(count);
        for segment in &self.segments {
            let TestSegment { kind, address, bytes, memory_size } = segment;
            let fields = [offset, *address, *address, bytes.len() as u64, *memory_size].map(word).concat();
            file.extend(kind.to_le_bytes());
            let flags = 7u32.to_le_bytes().to_vec();
            let rest = if self.is_64 { [flags, fields, word(4)] } else { [fields, flags, word(4)] };
            file.extend(rest.concat());
            offset += bytes.len() as u64;
        }
        self.segments.iter().for_each(|segment| file.extend(&segment.bytes));
        file
    }
}

/// Makes an ELF note, padded to 4 bytes.
pub(crate) fn note(owner: &[u8], kind: u32, value: &[u8]) -> Vec<u8> {
    let pad = |bytes: &[u8]| [bytes, &vec![0; bytes.len().next_multiple_of(4) - bytes.len()]].concat();
    let words = [owner.len() as u32, value.len() as u32, kind].map(u32::to_le_bytes);
    [words.as_flattened(), &pad(owner), &pad(value)].concat()
}

/// Makes a bzImage of two setup sectors and 2048 bytes of kernel, which needs 1 MiB at 16 MiB.
pub(crate) fn bzimage(edit: impl FnOnce(&mut setup_header)) -> Vec<u8> {
    let mut header = setup_header {
        setup_sects: 1,
        syssize: 128,
        boot_flag: 0xaa55,
        jump: 0x6aeb,
        header: u32::from_le_bytes(*b"HdrS"),
        version: 0x20f,
        loadflags: LOADED_HIGH,
        setup_data: 0xdead,
        initrd_addr_max: 0x7fff_ffff,
        kernel_alignment: 0x20_0000,
        relocatable_kernel: 1,
        xloadflags: XLF_KERNEL_64 | XLF_CAN_BE_LOADED_ABOVE_4G,
        cmdline_size: 2047,
        pref_address: 0x100_0000,
        init_size: 0x10_0000,
        ..setup_header::default()
    };
    edit(&mut header);
    let mut file = vec![0; 0x1f1];
    file.extend(header.as_slice());
    file.resize(1024, 0);
    file.extend((0..2048u32).map(|n| (n / 3) as u8 | 1));
    file
}
