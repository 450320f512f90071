//! The memory of a snapshot that may be a diff: what lies below, which is a whole one's, and the pages over it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::diff::Listed;
use super::lineage::{Differ, Lineage};
use super::manifest::BaseSnapshot;
use super::memory::Memory;
use super::reader::{open_regular, read_manifest};
use super::{DIFF_FILE, Metadata, STATE_FILE, diff};
use crate::error::{Error, Result};
use crate::memory::backing::OtherPages;

/// Opens it. Says too what a diff of a VM that is restored from it would be relative to.
///
/// # Errors
/// A file is missing or is not what it should be, or the base is not there or another one.
pub(super) fn open(
    snapshot: &Path,
    metadata: &Metadata,
) -> Result<(Memory, Option<OtherPages>, Option<Lineage>)> {
    let len = metadata.memory_bytes;
    let Some(base) = &metadata.base else {
        let digest = metadata.memory_digest.as_ref();
        let lineage = digest.map(|digest| Lineage {
            base: BaseSnapshot { memory_digest: digest.clone(), path: absolute(snapshot) },
            differ: Differ::NotBase(None),
        });
        return Ok((Memory::open(snapshot, len)?, None, lineage));
    };
    let base = find_base(snapshot, base)?;
    let (file, Listed { pages, .. }) = open_pages(snapshot, len, &base)?;
    let memory = Memory::open(&base.path, len)?;
    let over = OtherPages { pages: Arc::new(pages), file: Arc::new(file) };
    Ok((memory, Some(over), Some(Lineage { base, differ: Differ::NotBase(None) })))
}

/// Opens the pages of a diff over `base`, which need not be there.
///
/// # Errors
/// They are not there, are damaged, or are for another base.
pub(super) fn open_pages(snapshot: &Path, memory_len: u64, base: &BaseSnapshot) -> Result<(File, Listed)> {
    let path = snapshot.join(DIFF_FILE);
    let (file, _) = open_regular(snapshot, &path)?;
    let listed = diff::read(&file, memory_len, base.digest())
        .map_err(|source| Error::file("read", path.display(), source))?
        .map_err(|problem| Error::snapshot(&path, problem))?;
    Ok((file, listed))
}

/// A diff's base, where it was or beside the diff.
///
/// # Errors
/// It is in neither place, or is another one.
pub(super) fn find_base(snapshot: &Path, wanted: &BaseSnapshot) -> Result<BaseSnapshot> {
    let beside = || Some(snapshot.parent()?.join(wanted.path.file_name()?));
    let is_there = |path: &PathBuf| path.join(STATE_FILE).exists();
    let there = Some(wanted.path.clone()).filter(is_there).or_else(|| beside().filter(is_there));
    let path = there.ok_or_else(|| {
        Error::snapshot(snapshot, format!("is a diff, and its base {} is not there", wanted.path.display()))
    })?;
    let (manifest, _) = read_manifest(&path)?;
    match manifest.metadata.memory_digest {
        Some(digest) if digest == wanted.memory_digest => {
            Ok(BaseSnapshot { memory_digest: digest, path: absolute(&path) })
        }
        other => {
            let (wanted, found) = (&wanted.memory_digest, other.unwrap_or_else(|| "none".to_owned()));
            let problem =
                format!("is a diff over memory with digest {wanted}; {} has {found}", path.display());
            Err(Error::snapshot(snapshot, problem))
        }
    }
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
