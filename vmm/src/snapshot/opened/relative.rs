//! Opens the memory of a snapshot that may be a diff: a complete base, and the pages over it.

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
    /// The complete memory, or the base's.
    pub memory: SnapshotMemory,
    /// The pages of a diff.
    pub over: Option<OverlayPages>,
    /// The lineage of VMs restored from it.
    pub lineage: Option<Lineage>,
    /// Digests that the content of both must have.
    pub digests: Digests,
}

/// The digests that state files and diffs name.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Digests {
    /// Digest of the complete memory.
    pub memory: Option<u64>,
    /// Digest of the pages over it.
    pub over: Option<u64>,
}

/// The base of a diff.
struct OpenedBase {
    /// Digest and path.
    snapshot: BaseSnapshot,
    /// The memory file.
    file: Option<MemoryFile>,
    /// The directory.
    found: GrantedBase,
}

/// Opens the memory of `snapshot`. Asks `granted` before it opens a base's directory.
///
/// # Errors
/// A file is missing or wrong, or the base is missing or another one.
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
    let OpenedBase { snapshot: base, file: memory_file, found } = find_base(snapshot, base, granted)?;
    let (file, DiffPages { pages, digest, .. }) = open_pages(snapshot, metadata, &base)?;
    let memory = SnapshotMemory::open(found.place(), len, memory_file.as_ref())?;
    let over = Some(OverlayPages { pages: Arc::new(pages), file: Arc::new(file) });
    let digests = Digests { memory: Some(base.digest()), over: digest };
    let lineage = Some(Lineage { base, may_differ: PagesToCapture::NotBase(None) });
    Ok(OpenedMemory { memory, over, lineage, digests })
}

/// Opens the pages of a diff over `base`. The base may be absent.
///
/// # Errors
/// The file of the pages is missing, damaged, or another diff's.
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

/// Finds a diff's base, at its recorded path or beside the diff. A candidate that is not granted, or is
/// another snapshot, does not hide the other. A path that is not granted is not examined, so errors do not
/// tell whether it exists.
///
/// # Errors
/// Why the first candidate is not used, or that the base is missing.
fn find_base(
    snapshot: &Path,
    wanted: &BaseSnapshot,
    granted: &dyn Fn(&Path) -> Result<GrantedBase>,
) -> Result<OpenedBase> {
    let beside = snapshot.parent().zip(wanted.path.file_name()).map(|(parent, name)| parent.join(name));
    let places = [Some(wanted.path.clone()), beside].into_iter().flatten();
    let mut refused = None;
    for place in places {
        let found = match granted(&place) {
            Ok(found) => match found.place().has(STATE_FILE) {
                Ok(true) => base_at(snapshot, wanted, found),
                Ok(false) => continue,
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        match found {
            Ok(base) => return Ok(base),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    Err(refused.unwrap_or_else(|| base_is_missing(snapshot, &wanted.path)))
}

fn base_at(snapshot: &Path, wanted: &BaseSnapshot, found: GrantedBase) -> Result<OpenedBase> {
    let (manifest, _) = read_manifest(found.place())?;
    match manifest.metadata.memory_digest {
        Some(digest) if digest == wanted.memory_digest => {
            let snapshot = BaseSnapshot { memory_digest: digest, path: absolute(&found.path) };
            Ok(OpenedBase { snapshot, file: manifest.metadata.memory_file, found })
        }
        other => {
            let (wanted, other) = (&wanted.memory_digest, other.unwrap_or_else(|| "none".to_owned()));
            let place = found.path.display();
            let problem = format!(
                "is a diff over memory with digest {wanted}, but the memory of its base {place} has digest \
                 {other}"
            );
            Err(Error::snapshot(snapshot, problem))
        }
    }
}

fn absolute(path: &Path) -> PathBuf {
    crate::paths::absolute(path).unwrap_or_else(|_| path.to_owned())
}
