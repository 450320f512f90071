//! The memory of a snapshot that may be a diff: what lies below, which is a whole one's, and the pages over it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::memory::{SnapshotMemory, is_named};
use crate::error::{Error, Result};
use crate::memory::base::OverlayPages;
use crate::snapshot::format::diff;
use crate::snapshot::format::diff::DiffPages;
use crate::snapshot::format::manifest::{BaseSnapshot, base_is_missing};
use crate::snapshot::format::place::{GrantedBase, SnapshotDir};
use crate::snapshot::lineage::{Lineage, PagesToCapture};
use crate::snapshot::opened::state::read_manifest;
use crate::snapshot::{DIFF_FILE, MemoryFile, Metadata, STATE_FILE};

/// The memory of a snapshot on disk.
pub(crate) struct OpenedMemory {
    /// All of it, or the base's.
    pub memory: SnapshotMemory,
    /// The pages of a diff.
    pub over: Option<OverlayPages>,
    /// What a diff of a VM restored from it would be relative to.
    pub lineage: Option<Lineage>,
    /// What the content of both should be.
    pub digests: Digests,
}

/// The digests that state files and diffs name.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Digests {
    /// Of the memory that is there as a whole.
    pub memory: Option<u64>,
    /// Of the pages over it.
    pub over: Option<u64>,
}

/// A base that was found.
struct Base {
    /// Its digest and place.
    snapshot: BaseSnapshot,
    /// Its memory file.
    file: Option<MemoryFile>,
    /// Its directory.
    found: GrantedBase,
}

/// Opens the memory of the snapshot at `snapshot`. The directory of a base is looked into once `granted` agrees.
///
/// # Errors
/// A file is missing or is not what it should be, or the base is not there or another one.
pub(crate) fn open(
    snapshot: &Path,
    metadata: &Metadata,
    granted: &dyn Fn(&Path) -> Result<GrantedBase>,
) -> Result<OpenedMemory> {
    let len = metadata.memory_bytes;
    let Some(base) = &metadata.base else {
        let named = metadata.memory_digest.as_ref();
        let base =
            named.map(|digest| BaseSnapshot { memory_digest: digest.clone(), path: absolute(snapshot) });
        let digests = Digests { memory: base.as_ref().map(BaseSnapshot::digest), over: None };
        let lineage = base.map(|base| Lineage { base, may_differ: PagesToCapture::NotBase(None) });
        let memory = SnapshotMemory::open(snapshot, len, metadata.memory_file.as_ref())?;
        return Ok(OpenedMemory { memory, over: None, lineage, digests });
    };
    let Base { snapshot: base, file: memory_file, found } = find_base(snapshot, base, granted)?;
    let (file, DiffPages { pages, digest, .. }) = open_pages(snapshot, metadata, &base)?;
    let memory = SnapshotMemory::open(found.place(), len, memory_file.as_ref())?;
    let over = Some(OverlayPages { pages: Arc::new(pages), file: Arc::new(file) });
    let digests = Digests { memory: Some(base.digest()), over: digest };
    let lineage = Some(Lineage { base, may_differ: PagesToCapture::NotBase(None) });
    Ok(OpenedMemory { memory, over, lineage, digests })
}

/// Opens the pages of a diff over `base`, which need not be there.
///
/// # Errors
/// They are not there, are damaged, or are another diff's.
pub(crate) fn open_pages(
    snapshot: &Path,
    metadata: &Metadata,
    base: &BaseSnapshot,
) -> Result<(File, DiffPages)> {
    let path = snapshot.join(DIFF_FILE);
    let (file, _) = SnapshotDir::from(snapshot).open_regular(DIFF_FILE)?;
    let listed = diff::read(&file, metadata.memory_bytes, base.digest())
        .map_err(|source| Error::file("read", path.display(), source))?
        .map_err(|problem| Error::snapshot(&path, problem))?;
    is_named(&path, &MemoryFile::diff(listed.checksum), metadata.memory_file.as_ref())?;
    Ok((file, listed))
}

/// Finds a diff's base, where it was or beside the diff. One that is not granted, or another snapshot, does
/// not hide the other. What is not granted is not looked at: an error does not tell whether it is there.
///
/// # Errors
/// Says of the first place why it is not used, or that there is no base.
fn find_base(
    snapshot: &Path,
    wanted: &BaseSnapshot,
    granted: &dyn Fn(&Path) -> Result<GrantedBase>,
) -> Result<Base> {
    let beside = snapshot.parent().zip(wanted.path.file_name()).map(|(parent, name)| parent.join(name));
    let places = [Some(wanted.path.clone()), beside].into_iter().flatten();
    let mut refused = None;
    for place in places {
        let found = match granted(&place) {
            Ok(found) if !found.place().has(STATE_FILE) => continue,
            Ok(found) => base_at(snapshot, wanted, found),
            Err(error) => Err(error),
        };
        match found {
            Ok(base) => return Ok(base),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    Err(refused.unwrap_or_else(|| base_is_missing(snapshot, &wanted.path)))
}

fn base_at(snapshot: &Path, wanted: &BaseSnapshot, found: GrantedBase) -> Result<Base> {
    let (manifest, _) = read_manifest(found.place())?;
    match manifest.metadata.memory_digest {
        Some(digest) if digest == wanted.memory_digest => {
            let snapshot = BaseSnapshot { memory_digest: digest, path: absolute(&found.path) };
            Ok(Base { snapshot, file: manifest.metadata.memory_file, found })
        }
        other => {
            let (wanted, other) = (&wanted.memory_digest, other.unwrap_or_else(|| "none".to_owned()));
            let place = found.path.display();
            let problem = format!("is a diff over memory with digest {wanted}; {place} has {other}");
            Err(Error::snapshot(snapshot, problem))
        }
    }
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
