//! The memory that a restore uses: the snapshot's, which its VMs share, or a copy that one VM has for itself.
//!
//! ```text
//!   memory.snap       ── copied ──> memfd     before the VM exists
//!   pages of a diff   ── copied ──> memfd     before the VM exists
//!   memory.pack       ─ unpacked ─> memfd     on touch, or all of it before the guest runs
//! ```
//!
//! A copy shares no page with another VM: neither through the host's page cache nor through a pager. No file
//! of the snapshot is mapped, so none needs a lease.

use std::fs::File;
use std::io;
use std::iter;
use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::memory::base::OverlayPages;
use crate::memory::dirty::freeze::seal;
use crate::memory::files::lease::Leases;
use crate::memory::files::memfd::fresh;
use crate::memory::files::sparse;
use crate::progress::Progress;
use crate::snapshot::opened::memory::{Packed, SnapshotMemory};
use crate::timing::step_done;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct MemoryOfRestore {
    pub memory: Arc<SnapshotMemory>,
    /// The pages of a diff.
    pub over: Option<OverlayPages>,
    /// The files that VMs map.
    pub files: Arc<Leases>,
}

impl MemoryOfRestore {
    /// Copies `bytes` of memory for one VM. Packed memory is not unpacked yet: the copy has its own place
    /// for what will be. `progress` counts the bytes.
    ///
    /// # Errors
    /// A file cannot be read, or changed since it was opened; the host lacks memory; or [`Error::Cancelled`].
    pub fn isolated(self, bytes: u64, progress: &Progress) -> Result<Self> {
        let Self { memory, over, files } = self;
        let memory = match &*memory {
            SnapshotMemory::Raw(file, path) => {
                let whole = iter::once(0..bytes);
                SnapshotMemory::Raw(copied(file, bytes, whole, progress)?, path.clone())
            }
            SnapshotMemory::Packed(packed) => SnapshotMemory::Packed(Packed::of(Arc::clone(&packed.pack))),
        };
        let over = match over {
            Some(OverlayPages { pages, file }) => {
                let file = copied(&file, bytes, pages.page_ranges(), progress)?;
                Some(OverlayPages { pages, file })
            }
            None => None,
        };
        // A writer may have changed a file while it was copied, which no lease reported.
        if let Some(path) = files.changed().map_err(|source| failed("look at", source))? {
            let problem = "changed while it was copied; restore again, and keep snapshots read-only";
            return Err(Error::snapshot(path, problem));
        }
        step_done("memory copy");
        Ok(Self { memory: Arc::new(memory), over, files: Arc::default() })
    }
}

/// A sealed memfd of `bytes`, with the content of `ranges`. Counts their holes too.
fn copied(
    from: &File,
    bytes: u64,
    ranges: impl Iterator<Item = Range<u64>>,
    progress: &Progress,
) -> Result<Arc<File>> {
    let to = fresh(bytes)?;
    for range in ranges {
        let len = range.end - range.start;
        progress.expect(len);
        let goes_on = |bytes| progress.add(bytes).is_ok();
        let data = sparse::data_while(from, &to, range, goes_on).map_err(|source| failed("copy", source))?;
        progress.check()?;
        progress.add(len - data)?;
    }
    seal(&to)?;
    Ok(Arc::new(to))
}

fn failed(act: &str, source: io::Error) -> Error {
    Error::host(format!("{act} the snapshot's memory for a base of the VM's own"), source)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, MetadataExt};
    use std::path::PathBuf;

    use super::*;
    use crate::memory::PAGE;
    use crate::memory::files::sealing::can_change;
    use crate::memory::page_set::PageSet;
    use crate::testing::ScratchDir;

    const LEN: u64 = 64 << 20;

    /// A snapshot's raw memory and the pages of a diff over it, in files of a directory.
    fn in_files(scratch: &ScratchDir) -> MemoryOfRestore {
        let file = |name: &str, at: u64, content: &[u8]| {
            let path = scratch.join(name);
            let options = File::options().read(true).write(true).create(true).truncate(true).open(path);
            let file = options.unwrap();
            file.set_len(LEN).unwrap();
            file.write_all_at(content, at).unwrap();
            Arc::new(file)
        };
        let memory = file("memory.snap", 3 * PAGE, b"of the base");
        let mut pages = PageSet::none(LEN);
        pages.add(5 * PAGE..7 * PAGE);
        let over = OverlayPages { pages: Arc::new(pages), file: file("diff", 6 * PAGE, b"of the diff") };
        over.file.write_all_at(b"a list, and no page", 9 * PAGE).unwrap();
        let files = Arc::new(Leases::of([&memory, &over.file]).unwrap());
        let memory = Arc::new(SnapshotMemory::Raw(memory, PathBuf::from("/s/memory.snap")));
        MemoryOfRestore { memory, over: Some(over), files }
    }

    fn text_at(file: &File, at: u64) -> [u8; 11] {
        let mut found = [0; 11];
        file.read_exact_at(&mut found, at).unwrap();
        found
    }

    #[test]
    fn copy_keeps_content_and_holes_after_the_files_changed() {
        let scratch = ScratchDir::new();
        let shared = in_files(&scratch);
        let progress = Progress::default();
        let own = shared.clone().isolated(LEN, &progress).unwrap();
        assert_eq!((progress.done(), progress.total()), (LEN + 2 * PAGE, LEN + 2 * PAGE));
        let (base, over) = (own.memory.base().unwrap(), own.over.unwrap());
        shared.memory.base().unwrap().set_len(0).unwrap();
        shared.over.unwrap().file.set_len(0).unwrap();
        assert_eq!(&text_at(&base, 3 * PAGE), b"of the base");
        assert_eq!(&text_at(&over.file, 6 * PAGE), b"of the diff");
        assert_eq!(text_at(&over.file, 9 * PAGE), [0; 11], "only the pages are copied");
        for file in [&*base, &*over.file] {
            assert!(file.metadata().unwrap().blocks() * 512 < LEN / 8, "holes stay");
            assert!(!can_change(file).unwrap());
        }
        assert!(!own.files.cover(&base), "a copy needs no lease");
    }

    #[test]
    fn file_that_changed_since_it_was_opened_is_refused() {
        for (name, act) in [
            ("memory.snap", (|file: &File| file.set_len(LEN / 2).unwrap()) as fn(&File)),
            ("diff", |file| file.set_len(LEN + PAGE).unwrap()),
        ] {
            let scratch = ScratchDir::new();
            let shared = in_files(&scratch);
            act(&File::options().write(true).open(scratch.join(name)).unwrap());
            let error = shared.isolated(LEN, &Progress::default()).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("changed while it was copied"), "{error}");
        }
    }

    #[test]
    fn cancelled_copy_is_an_error() {
        let scratch = ScratchDir::new();
        let cancelled = Progress::cancelling_at(PAGE);
        let error = in_files(&scratch).isolated(LEN, &cancelled).unwrap_err();
        assert!(matches!(error, Error::Cancelled), "{error}");
    }
}
