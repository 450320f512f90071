//! A guest's memory, read once, to be packed.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use volt_vmm::Compression;
use volt_vmm::Progress;
use volt_vmm::internal::pack::{MemorySource, Pack, Packing, pack};

use crate::{OrSay, Result};

const PAGE: usize = 4096;

/// A guest's memory.
#[derive(Debug)]
pub struct Memory {
    /// The file that it was read from.
    pub path: PathBuf,
    /// All of it.
    pub bytes: Vec<u8>,
    /// All pages that are not zero.
    populated: Vec<Range<u64>>,
}

impl Memory {
    /// Makes it of a file as long as the memory.
    ///
    /// # Errors
    /// It cannot be read, or is no memory.
    pub fn read(path: PathBuf) -> Result<Self> {
        let bytes = std::fs::read(&path).or_say(&format!("read {}", path.display()))?;
        if bytes.is_empty() || bytes.len() % PAGE != 0 {
            return Err(format!("{} is no memory: {} bytes long", path.display(), bytes.len()));
        }
        let mut populated: Vec<Range<u64>> = Vec::new();
        for (at, page) in (0_u64..).step_by(PAGE).zip(bytes.chunks(PAGE)) {
            if page.iter().all(|byte| *byte == 0) {
                continue;
            }
            match populated.last_mut() {
                Some(last) if last.end == at => last.end += PAGE as u64,
                _ => populated.push(at..at + PAGE as u64),
            }
        }
        Ok(Self { path, bytes, populated })
    }

    /// Bytes of pages that are not zero.
    #[must_use]
    pub fn touched(&self) -> u64 {
        self.populated.iter().map(|range| range.end - range.start).sum()
    }

    /// The chunks of so many bytes that are not zero, with their numbers.
    pub fn chunks(&self, chunk: usize) -> impl Iterator<Item = (usize, &[u8])> {
        self.bytes.chunks(chunk).enumerate().filter(|(_, chunk)| chunk.iter().any(|byte| *byte != 0))
    }

    /// Packs it into a file in memory, so that no disk is measured.
    ///
    /// # Errors
    /// It cannot be packed so.
    pub fn pack(&self, packing: &Packing) -> Result<Pack> {
        let (file, name) = (nameless()?, Path::new("the benchmark's pack"));
        pack(self, self.bytes.len() as u64, packing, (&file, name), &Progress::default()).or_say("pack")?;
        Pack::open(file, name).or_say("open the pack")
    }
}

impl MemorySource for Memory {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> volt_vmm::Result<()> {
        into.copy_from_slice(&self.bytes[offset as usize..][..into.len()]);
        Ok(())
    }

    fn populated(&self) -> &[Range<u64>] {
        &self.populated
    }
}

/// The codecs, and no codec: what reading and verifying takes by itself.
#[must_use]
pub fn codecs() -> [(&'static str, Packing); 3] {
    let lz4 = Packing::new(Compression::Lz4);
    // Nothing saves all of a chunk.
    let raw = lz4.least_saving(100);
    [("raw", raw), ("lz4", lz4), ("zstd", Packing::new(Compression::Zstd { level: 3 }))]
}

/// An empty file in memory, which goes when it is closed.
///
/// # Errors
/// The host has no memory for it.
pub fn nameless() -> Result<File> {
    // Where files are in memory on any Linux.
    let path = Path::new("/dev/shm").join(format!("volt-bench-pack-{}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path);
    let file = file.or_say(&format!("create {}", path.display()))?;
    std::fs::remove_file(&path).or_say("remove the pack's name")?;
    Ok(file)
}
