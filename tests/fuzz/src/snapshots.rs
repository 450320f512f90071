//! Snapshots in directories, made without a VM.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use arbitrary::Arbitrary;
use serde_json::{Value, json};
use volt_vmm::Progress;
use volt_vmm::fuzzing::page_set::PageSet;
use volt_vmm::fuzzing::{crc64, diff, digest};
use volt_vmm::internal::pack::{Compression, MemorySource, Pack, Packing, pack};

use crate::files::in_memory;

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Bytes of memory, the fewest that a VM has.
pub const MEMORY: usize = 1 << 20;
/// The id of every snapshot.
pub const ID: &str = "0123456789abcdef0123456789abcdef";
/// Bytes of a state file before the part that the checksum covers.
pub const HEAD: usize = 27;

/// Pages of memory by number, the others of which are zero.
#[derive(Clone, Debug, Arbitrary)]
pub struct Pages(Vec<(u8, Page)>);

/// Content of a page.
#[derive(Clone, Debug, Arbitrary)]
enum Page {
    Zero,
    Same(u8),
    /// Bytes that do not compress.
    Noise(u64),
    /// The page ends with a byte.
    Last(u8),
}

impl Page {
    fn fill(&self, page: &mut [u8]) {
        page.fill(0);
        match *self {
            Self::Zero => {}
            Self::Same(byte) => page.fill(byte),
            Self::Noise(seed) => {
                let mut state = seed | 1;
                page.chunks_mut(8).for_each(|word| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    word.copy_from_slice(&state.to_le_bytes());
                });
            }
            Self::Last(byte) => page[PAGE - 1] = byte,
        }
    }
}

impl Pages {
    /// Writes the pages over `memory`.
    pub fn write(&self, memory: &mut [u8]) {
        for (number, page) in &self.0 {
            page.fill(&mut memory[usize::from(*number) * PAGE..][..PAGE]);
        }
    }

    /// The set of these pages.
    #[must_use]
    pub fn set(&self) -> PageSet {
        let mut set = PageSet::none(MEMORY as u64);
        for (number, _) in &self.0 {
            let at = u64::from(*number) * PAGE as u64;
            set.add(at..at + PAGE as u64);
        }
        set
    }
}

/// Packing of memory.
#[derive(Clone, Debug, Arbitrary)]
pub struct How {
    zstd: Option<u8>,
    chunk: u8,
    least_saving: u8,
}

impl How {
    /// The library's options.
    #[must_use]
    pub fn packing(&self) -> Packing {
        let compression = match self.zstd {
            None => Compression::Lz4,
            Some(level) => Compression::Zstd { level: 1 + i32::from(level % 6) },
        };
        Packing::with(compression, Some(4096 << (self.chunk % 5)), Some(self.least_saving % 101))
    }
}

struct Memory<'m>(&'m [u8], std::ops::Range<u64>);

impl MemorySource for Memory<'_> {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> volt_vmm::Result<()> {
        into.copy_from_slice(&self.0[offset as usize..][..into.len()]);
        Ok(())
    }

    fn populated(&self) -> &[std::ops::Range<u64>] {
        std::slice::from_ref(&self.1)
    }
}

/// Packs memory. Returns the pack and its digest as the state names it.
///
/// # Panics
/// The memory cannot be packed.
#[must_use]
pub fn packed(memory: &[u8], how: &How) -> (Vec<u8>, String) {
    let (source, mut file) = (Memory(memory, 0..memory.len() as u64), in_memory(&[]));
    let (name, none) = (Path::new("memory.pack"), Progress::default());
    pack(&source, memory.len() as u64, &how.packing(), (&file, name), &none).expect("a memory in order");
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).expect("a file in memory");
    let digest = Pack::open(file, name).expect("a pack in order").digest();
    (bytes, format!("{digest:032x}"))
}

/// Makes the file of a diff. Returns it and the checksum of its list.
///
/// # Panics
/// The host refuses.
#[must_use]
pub fn diff_of(base: u64, pages: &Pages) -> (Vec<u8>, String) {
    let mut memory = vec![0; MEMORY];
    pages.write(&mut memory);
    let (file, set) = (in_memory(&memory), pages.set());
    let listed: u64 = set
        .page_ranges()
        .map(|range| digest::of_pages(range.start, &memory[range.start as usize..range.end as usize]))
        .fold(0, u64::wrapping_add);
    let checksum = diff::finish(&file, MEMORY as u64, base, &set, listed).expect("a file in memory");
    (whole(&file), format!("{checksum:016x}"))
}

/// Reads a whole file.
///
/// # Panics
/// The host refuses.
#[must_use]
pub fn whole(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.metadata().expect("a file").len() as usize];
    file.read_exact_at(&mut bytes, 0).expect("a file");
    bytes
}

/// The state of a snapshot whose metadata has `more` fields, as a document without its checksum.
#[must_use]
pub fn state(more: &Value) -> Value {
    let host = json!({
        "cpu_vendor": "AuthenticAMD", "cpu_signature": "26/2/1", "microcode": "0x1", "kernel": "6.18",
        "kvm_module": "kvm_amd",
    });
    let mut metadata = json!({
        "id": ID, "created": "2026-11-23T05:50:02Z", "memory_bytes": MEMORY, "vcpus": 1,
        "volt_vmm": "0.1.0", "host": host,
    });
    if let (Some(metadata), Some(more)) = (metadata.as_object_mut(), more.as_object()) {
        metadata.extend(more.clone());
    }
    let clock = json!({"clock": 7, "flags": 0, "realtime": 0, "host_tsc": 0});
    json!({
        "version": 3, "arch": "x86_64", "metadata": metadata,
        "config": {"boot": {"kernel": "/kernel"}, "vcpus": 1, "memory_mib": MEMORY >> 20},
        "machine": {"vcpus": [], "clock": clock, "devices": {}},
    })
}

/// The file of a state: the checksum, then the document without its opening brace.
#[must_use]
pub fn sealed(document: &str) -> Vec<u8> {
    let body = document.strip_prefix('{').unwrap_or(document);
    [format!("{{\"crc64\":\"{:016x}\",", crc64(body.as_bytes())).as_bytes(), body.as_bytes()].concat()
}

/// Writes a file of a snapshot.
///
/// # Panics
/// The host refuses.
pub fn write(directory: &Path, name: &str, bytes: &[u8]) {
    std::fs::create_dir_all(directory).expect("a directory for temporary files");
    std::fs::write(directory.join(name), bytes).expect("a temporary file");
}
