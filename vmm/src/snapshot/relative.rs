//! The memory of a snapshot that may be a diff: what lies below, which is a whole one's, and the pages over it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::lineage::{Differ, Lineage};
use super::manifest::BaseSnapshot;
use super::memory::Memory;
use super::reader::{open_regular, read_manifest};
use super::{DIFF_FILE, Metadata, STATE_FILE, diff};
use crate::error::{Error, Result};
use crate::memory::backing::OtherPages;
use crate::memory::pages::PageSet;

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
            differ: Differ::NotBase(Arc::new(PageSet::none(len))),
        });
        return Ok((Memory::open(snapshot, len)?, None, lineage));
    };
    let base = find_base(snapshot, base)?;
    let path = snapshot.join(DIFF_FILE);
    let (file, _) = open_regular(snapshot, &path)?;
    let pages = diff::read(&file, len, base.digest())
        .map_err(|source| Error::file("read", path.display(), source))?
        .map_err(|problem| Error::snapshot(&path, problem))?;
    let memory = Memory::open(&base.path, len)?;
    let over = OtherPages { pages: Arc::new(pages), file: Arc::new(file) };
    let differ = Differ::NotBase(Arc::new(PageSet::none(len)));
    Ok((memory, Some(over), Some(Lineage { base, differ })))
}

/// A diff's base, where it was or beside the diff.
fn find_base(snapshot: &Path, wanted: &BaseSnapshot) -> Result<BaseSnapshot> {
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
