//! The memory that is packed: a guest's, read once; and a large one that is nearly empty, for its index.

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use volt_benches::{OrSay, Result};
use volt_vmm::snapshot::pack::{Pack, Packing, Source, pack};

const PAGE: usize = 4096;

/// A guest's memory.
pub struct Memory {
    pub bytes: Vec<u8>,
    /// All pages that are not zero.
    populated: Vec<Range<u64>>,
}

impl Memory {
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).or_say(&format!("read {}", path.display()))?;
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
        Ok(Self { bytes, populated })
    }

    /// Bytes of pages that are not zero.
    pub fn touched(&self) -> u64 {
        self.populated.iter().map(|range| range.end - range.start).sum()
    }

    /// Those bytes, with the next `chunk` of them at a time.
    pub fn chunks(&self, chunk: usize) -> Vec<&[u8]> {
        let whole = self.bytes.chunks(chunk).filter(|chunk| chunk.iter().any(|byte| *byte != 0));
        whole.collect()
    }

    /// Packs it into a file in memory, so that no disk is measured.
    pub fn pack(&self, packing: &Packing) -> Result<Pack> {
        let (file, name) = (nameless()?, Path::new("the benchmark's pack"));
        pack(self, self.bytes.len() as u64, packing, (&file, name), &|_| ()).or_say("pack")?;
        Pack::open(file, name).or_say("open the pack")
    }
}

impl Source for Memory {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> volt_vmm::Result<()> {
        into.copy_from_slice(&self.bytes[offset as usize..][..into.len()]);
        Ok(())
    }

    fn populated(&self) -> &[Range<u64>] {
        &self.populated
    }
}

/// So much memory, with a number in each 32 KiB.
pub struct Large(Range<u64>);

impl Large {
    pub const LEN: u64 = 16 << 30;

    pub fn new() -> Self {
        Self(0..Self::LEN)
    }
}

impl Source for Large {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> volt_vmm::Result<()> {
        into.fill(0);
        into[..8].copy_from_slice(&(offset + 1).to_le_bytes());
        Ok(())
    }

    fn populated(&self) -> &[Range<u64>] {
        std::slice::from_ref(&self.0)
    }
}

/// An empty file in memory, which goes when it is closed.
pub fn nameless() -> Result<File> {
    // Where files are in memory on any Linux.
    let path = Path::new("/dev/shm").join(format!("volt-bench-pack-{}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path);
    let file = file.or_say(&format!("create {}", path.display()))?;
    std::fs::remove_file(&path).or_say("remove the pack's name")?;
    Ok(file)
}
