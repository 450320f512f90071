//! Inspects a snapshot's files, without a VM.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::Serialize;

use crate::error::{Error, Result};
use crate::memory::PAGE;
use crate::memory::files::data::data_ranges;
use crate::paths;
use crate::snapshot::format::diff::DiffPages;
use crate::snapshot::format::pack::{ChunkKind, Pack};
use crate::snapshot::opened::memory::SnapshotMemory;
use crate::snapshot::opened::relative;
use crate::snapshot::opened::state;
use crate::snapshot::{Metadata, WorkingSet};
use crate::store::Store;

/// Result of an inspection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Inspection {
    /// The snapshot's metadata.
    pub metadata: Metadata,
    /// The memory file.
    pub memory_file: InspectedMemory,
    /// The working set that a restore reads ahead, if one was recorded.
    pub working_set: Option<NamedPages>,
    /// The content of memory, by kind of storage.
    pub kinds: BTreeMap<&'static str, ChunkSum>,
    /// The same as ranges of pages of 4 KiB, in ascending order.
    pub pages: Vec<StoredRange>,
}

/// Size of a working set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct NamedPages {
    /// Pages.
    pub pages: u64,
    /// The pages in bytes.
    pub bytes: u64,
    /// Runs of pages.
    pub runs: u64,
}

/// A memory file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct InspectedMemory {
    /// Name of the file.
    pub name: &'static str,
    /// Length in bytes.
    pub bytes: u64,
    /// Bytes on disk, without holes.
    pub disk_bytes: u64,
    /// Facts of packed memory.
    pub pack: Option<PackFacts>,
}

/// Facts from a pack's footer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PackFacts {
    /// Format version.
    pub version: u32,
    /// Digest of the content: 32 hex digits.
    pub digest: String,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// Bytes of the index.
    pub index_bytes: u64,
}

/// All chunks of one kind; of raw memory and of a diff, all ranges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ChunkSum {
    /// Number of chunks.
    pub count: u64,
    /// Bytes of guest memory.
    pub memory_bytes: u64,
    /// Bytes in the file.
    pub stored_bytes: u64,
}

/// A range of pages with the same kind of storage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct StoredRange {
    /// Kind of storage.
    pub kind: &'static str,
    /// Numbers of the pages.
    pub pages: Range<u64>,
}

/// Inspects the snapshot `name`. Reads only the index of packed memory.
///
/// # Errors
/// [`Error::Snapshot`]: the snapshot is missing or damaged.
pub fn inspect(store: &Store, name: &str) -> Result<Inspection> {
    let path = store.path_of(name)?;
    let (manifest, _) = state::read_manifest(&path)?;
    let metadata = manifest.metadata;
    let mut found = Found::default();
    let memory_file = match &metadata.base {
        Some(base) => {
            let len = metadata.memory_bytes;
            let (_, DiffPages { pages, .. }) = relative::open_pages(&path, &metadata, base)?;
            found.add_ranges(["base", "diff"], pages.page_ranges(), len);
            memory_file(crate::snapshot::DIFF_FILE, &path.join(crate::snapshot::DIFF_FILE), None)?
        }
        None => of_whole(&path, &metadata, &mut found)?,
    };
    let set = WorkingSet::open(&path, &metadata.id, metadata.memory_bytes)?;
    let working_set = set.map(|set| NamedPages {
        pages: set.pages(),
        bytes: set.pages() * PAGE,
        runs: set.page_ranges().len() as u64,
    });
    Ok(Inspection { metadata, memory_file, working_set, kinds: found.kinds, pages: found.pages })
}

/// Inspects the memory of a full snapshot.
fn of_whole(path: &Path, metadata: &Metadata, found: &mut Found) -> Result<InspectedMemory> {
    let len = metadata.memory_bytes;
    match SnapshotMemory::open(path, len, metadata.memory_file.as_ref())? {
        SnapshotMemory::Raw(file, path) => {
            let failed = |source| Error::file("read", path.display(), source);
            found.add_ranges(["hole", "data"], data_ranges(&file, len).map_err(failed)?, len);
            memory_file(crate::snapshot::MEMORY_FILE, &path, None)
        }
        SnapshotMemory::Packed(packed) => {
            let pack = &packed.pack;
            for chunk in 0..pack.geometry().chunks() {
                let (kind, stored) = name_of(pack.kind(chunk)?);
                found.add(kind, pack.geometry().range(chunk), stored);
            }
            memory_file(crate::snapshot::PACK_FILE, pack.name(), Some(facts(pack)))
        }
    }
}

fn name_of(kind: ChunkKind) -> (&'static str, u64) {
    match kind {
        ChunkKind::Zero => ("zero", 0),
        ChunkKind::Stored { same_as: Some(_), .. } => ("repeat", 0),
        ChunkKind::Stored { encoding, len, .. } => (encoding.name(), len.into()),
    }
}

fn facts(pack: &Pack) -> PackFacts {
    PackFacts {
        version: pack.version(),
        digest: format!("{:032x}", pack.digest()),
        chunk_bytes: pack.chunk_len(),
        index_bytes: pack.index_len(),
    }
}

fn memory_file(name: &'static str, path: &Path, pack: Option<PackFacts>) -> Result<InspectedMemory> {
    let found = paths::open_to_read(path).and_then(|file| file.metadata());
    let found = found.map_err(|source| Error::file("look at", path.display(), source))?;
    Ok(InspectedMemory { name, bytes: found.len(), disk_bytes: found.blocks() * 512, pack })
}

#[derive(Default)]
struct Found {
    kinds: BTreeMap<&'static str, ChunkSum>,
    pages: Vec<StoredRange>,
}

impl Found {
    /// The stored `ranges` of `len` bytes, and the gaps between them.
    fn add_ranges(
        &mut self,
        [between, stored]: [&'static str; 2],
        ranges: impl IntoIterator<Item = Range<u64>>,
        len: u64,
    ) {
        let mut end = 0;
        for range in ranges {
            self.add(between, end..range.start, 0);
            end = range.end;
            self.add(stored, range.clone(), range.end - range.start);
        }
        self.add(between, end..len, 0);
    }

    fn add(&mut self, kind: &'static str, bytes: Range<u64>, stored: u64) {
        if bytes.is_empty() {
            return;
        }
        let sum = self.kinds.entry(kind).or_default();
        sum.count += 1;
        sum.memory_bytes += bytes.end - bytes.start;
        sum.stored_bytes += stored;
        let pages = bytes.start / PAGE..bytes.end.div_ceil(PAGE);
        match self.pages.last_mut() {
            Some(last) if last.kind == kind && last.pages.end == pages.start => last.pages.end = pages.end,
            _ => self.pages.push(StoredRange { kind, pages }),
        }
    }
}
