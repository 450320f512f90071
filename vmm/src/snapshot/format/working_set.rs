//! `working-set`: the pages that a restored guest touched up to an event, in the order of their first touch
//! if that is known.
//!
//! ```text
//!   magic | CRC-64/ECMA-182 of the rest | snapshot's id | bytes of memory | runs: first page, pages; each of 32 bits …
//!   8       8                             16              8                 8 each, to the end of the file
//! ```
//!
//! Where it is known which pages the guest wrote, the magic is another one, the runs of these pages come
//! first, and their number, of 64 bits, stands before the runs.
//!
//! All numbers are little-endian; the runs are those of [`crate::memory::page_ranges`]. The file is advice,
//! not content: its pages are read ahead, and any other page is read when the guest touches it. It belongs to
//! one snapshot, to those converted from it, and to those merged from it and its base.

use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::crc::CRC;
use crate::error::{Error, Result};
use crate::memory::PAGE;
use crate::memory::files::memfd::of_fixed_length;
use crate::memory::lazy::prefetch::PageRanges;
use crate::memory::page_ranges;
use crate::memory::page_set::PageSet;
use crate::partial;
use crate::paths;
use crate::snapshot::WORKING_SET_FILE;
use crate::snapshot::format::place::SnapshotDir;
use crate::store::dir::NewDir;
use crate::sync::lock;

const MAGIC: &[u8; 8] = b"VOLTWSET";
/// The magic of a set that tells written pages from others.
const MAGIC_WRITTEN: &[u8; 8] = b"VOLTWSTW";
/// Bytes before the runs.
const HEAD: usize = 40;
/// Bytes of ranges decoded at once.
const STEP: usize = 64 << 10;
/// The most pieces into which the ranges of a set are cut: 4 MiB of them.
const MOST_CUTS: usize = 1 << 18;
const NOT_ONE: &str = "is not a working set";
const IMPOSSIBLE: &str = "lists an empty range, a page beyond the end of memory, a page twice, or a wrong \
                          number of written ranges";

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkingSet {
    /// Disjoint ranges of offsets, none of them empty: of pages known as written, then of the others in the
    /// order of their first touch.
    runs: PageRanges,
    /// Number of ranges of pages known as written.
    written: usize,
}

impl WorkingSet {
    /// Makes a set of pages, given by their offsets in the order of touch. A repeated page counts once, at
    /// its first place.
    #[must_use]
    pub fn of(memory: u64, touched: impl IntoIterator<Item = u64>) -> Self {
        let (mut seen, mut runs) = (PageSet::none(memory), Vec::<Range<u64>>::new());
        for page in touched {
            if seen.has(page) {
                continue;
            }
            seen.add(page..page + PAGE);
            match runs.last_mut() {
                Some(run) if run.end == page => run.end += PAGE,
                _ => runs.push(page..page + PAGE),
            }
        }
        Self { runs: runs.into(), written: 0 }
    }

    /// Makes a set of pages that a guest wrote, and of pages that it only read.
    #[must_use]
    pub(crate) fn of_written(written: &PageSet, read: &PageSet) -> Self {
        let runs: PageRanges = written.page_ranges().chain(read.page_ranges()).collect();
        Self { written: written.page_ranges().count(), runs }
    }

    /// Disjoint ranges of whole pages: those known as written, then the others in the order of their first
    /// touch.
    #[must_use]
    pub fn page_ranges(&self) -> &PageRanges {
        &self.runs
    }

    /// The ranges of pages known as written.
    #[must_use]
    pub fn written(&self) -> &[Range<u64>] {
        &self.runs[..self.written]
    }

    /// The other ranges.
    #[must_use]
    pub fn others(&self) -> &[Range<u64>] {
        &self.runs[self.written..]
    }

    /// Number of pages.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.runs.iter().map(|run| (run.end - run.start) / PAGE).sum()
    }

    /// Number of pages that another set has too.
    #[must_use]
    pub fn shared_with(&self, other: &Self, memory: u64) -> u64 {
        let mut pages = PageSet::none(memory);
        other.runs.iter().for_each(|run| pages.add(run.clone()));
        let all = self.runs.iter().flat_map(|run| run.clone().step_by(PAGE as usize));
        all.filter(|page| pages.has(*page)).count() as u64
    }

    /// Opens the set beside the snapshot `id` in `directory`, whose memory has `memory` bytes. Returns
    /// nothing if none was recorded.
    ///
    /// # Errors
    /// The set cannot be read, is damaged, or belongs to another snapshot.
    pub fn open(directory: &Path, id: &str, memory: u64) -> Result<Option<Self>> {
        let path = directory.join(WORKING_SET_FILE);
        match paths::metadata_of_link(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            _ => Self::read(&path, id, memory).map(Some),
        }
    }

    /// Reads the set in the file at `path`, of snapshot `id` with `memory` bytes of memory.
    ///
    /// # Errors
    /// As [`WorkingSet::open`]; or the file is missing.
    pub fn read(path: &Path, id: &str, memory: u64) -> Result<Self> {
        let directory = SnapshotDir::from(path.parent().unwrap_or(path));
        let (file, len) = directory.open_regular(path.file_name().unwrap_or_default())?;
        let wrong = |problem| {
            Error::snapshot(path, format!("{problem}; delete the file and record the working set again"))
        };
        // A longer file cannot be a set of this memory.
        if len > (HEAD + 8) as u64 + page_ranges::longest(memory) {
            return Err(wrong(NOT_ONE.to_owned()));
        }
        Self::decode(file.take(len), id, memory)
            .map_err(|source| Error::file("read", path.display(), source))?
            .map_err(wrong)
    }

    /// The ranges without `pages`. If these would cut the ranges into more than [`MOST_CUTS`] pieces, as a
    /// forged list may, the rest stays whole: a set is advice.
    #[must_use]
    pub(crate) fn page_ranges_without(&self, pages: Option<&PageSet>) -> PageRanges {
        let Some(pages) = pages else { return Arc::clone(&self.runs) };
        let (mut left, mut cuts) = (Vec::with_capacity(self.runs.len()), MOST_CUTS);
        for run in self.runs.iter() {
            for gap in pages.gaps(run.clone()) {
                if cuts == 0 {
                    left.push(gap.start..run.end);
                    break;
                }
                cuts -= usize::from(gap != *run);
                left.push(gap);
            }
        }
        left.into()
    }

    /// Writes the set beside the snapshot in `directory`, in place of any other. The replacement is atomic.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn keep(&self, directory: &Path, id: &str, memory: u64) -> Result<()> {
        let path = directory.join(WORKING_SET_FILE);
        let failed = |source| Error::file("write", path.display(), source);
        partial::remove_abandoned_files(directory, WORKING_SET_FILE);
        let (temporary, mut file) =
            partial::create_file(directory, WORKING_SET_FILE, 0o400).map_err(failed)?;
        let mut write = || {
            file.write_all(&self.encode(id, memory))?;
            file.sync_all()?;
            paths::rename(&temporary, &path, true)?;
            paths::open_to_read(directory)?.sync_all()
        };
        write().map_err(|source| {
            let _ = paths::remove_file(&temporary);
            failed(source)
        })
    }

    /// Writes the set into a new snapshot with the same id and memory.
    ///
    /// # Errors
    /// The file system refuses.
    pub(crate) fn carry(&self, dir: &NewDir, id: &str, memory: u64) -> Result<()> {
        let mut file = dir.create(WORKING_SET_FILE)?;
        let written = file.write_all(&self.encode(id, memory)).and_then(|()| file.sync_all());
        written.map_err(|source| dir.failed_to_write(WORKING_SET_FILE, source))
    }

    fn encode(&self, id: &str, memory: u64) -> Vec<u8> {
        let mut rest = Vec::with_capacity(HEAD + self.runs.len() * page_ranges::LEN);
        rest.extend(id_of(id).to_le_bytes());
        rest.extend(memory.to_le_bytes());
        if self.written > 0 {
            rest.extend((self.written as u64).to_le_bytes());
        }
        rest.extend(page_ranges::encode(&self.runs));
        let magic = if self.written > 0 { MAGIC_WRITTEN } else { MAGIC };
        let mut bytes = magic.to_vec();
        bytes.extend(CRC.checksum(&rest).to_le_bytes());
        bytes.extend(rest);
        bytes
    }

    /// Decodes a set while reading it, and stops at the first invalid range, so it takes memory only for
    /// valid ranges.
    fn decode(mut from: impl Read, id: &str, memory: u64) -> io::Result<std::result::Result<Self, String>> {
        let mut head = [0; HEAD];
        match from.read_exact(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(Err(NOT_ONE.to_owned())),
            read => read?,
        }
        let tells_written = head[..8] == *MAGIC_WRITTEN;
        if head[..8] != *MAGIC && !tells_written {
            return Ok(Err(NOT_ONE.to_owned()));
        }
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
        let mut digest = CRC.digest();
        digest.update(&head[16..]);
        let mut written = [0; 8];
        if tells_written {
            match from.read_exact(&mut written) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Ok(Err(NOT_ONE.to_owned()));
                }
                read => read?,
            }
            digest.update(&written);
        }
        let (mut ranges, mut step) = (Vec::new(), Vec::with_capacity(STEP));
        while from.by_ref().take(STEP as u64).read_to_end(&mut step)? > 0 {
            digest.update(&step);
            if page_ranges::add(&step, memory, &mut ranges).is_none() {
                return Ok(Err(format!("is damaged or {IMPOSSIBLE}")));
            }
            step.clear();
        }
        if word(8) != digest.finalize() {
            return Ok(Err("is damaged".to_owned()));
        }
        let of = u128::from_le_bytes(head[16..32].try_into().expect("16 bytes"));
        if (of, word(32)) != (id_of(id), memory) {
            let other = word(32);
            return Ok(Err(format!(
                "is the working set of another snapshot: of {of:032x} with {other} bytes of memory, not of \
                 {id} with {memory}"
            )));
        }
        if !page_ranges::are_apart(&ranges) {
            return Ok(Err(IMPOSSIBLE.to_owned()));
        }
        // Each set has one form: without a known page the other magic says so.
        match usize::try_from(u64::from_le_bytes(written)) {
            Ok(written) if written <= ranges.len() && tells_written == (written > 0) => {
                Ok(Ok(Self { runs: ranges.into(), written }))
            }
            _ => Ok(Err(IMPOSSIBLE.to_owned())),
        }
    }
}

/// A set to read ahead of a VM. Pages of it that lie under a diff's pages are left out once the guest runs.
#[derive(Debug)]
pub(crate) struct Plan {
    pub set: Arc<WorkingSet>,
    /// The pages over the base, for a VM of a diff.
    pub over: Option<Arc<PageSet>>,
}

/// The place of a snapshot's working set. Reads the set once, on demand.
#[derive(Debug)]
pub(crate) struct WorkingSetFile {
    place: Place,
    memory: u64,
    /// The result of reading, once it was read.
    known: Mutex<Option<Option<Arc<WorkingSet>>>>,
}

#[derive(Debug)]
enum Place {
    /// A file in the directory of a snapshot with this id.
    Directory { path: PathBuf, id: String },
    /// A memfd that a fork's parent and children share. Any of them may write it, at any time.
    Shared(File),
}

/// The id in a set of a fork's children, whose snapshots are many.
const SHARED: &str = "0";
/// Most pages of a set whose pages are mapped before a guest runs: 128 MiB. A guest that touched more had
/// worked for long, and its set would cost each later one more than it saves.
pub(crate) const MOST_MAPPED: u64 = (128 << 20) / PAGE;
/// Bytes of the file of a set that children share: its length in 8 bytes, and the set. Each range of the
/// largest one has a single page.
const SHARED_LEN: u64 = (8 + HEAD + 8) as u64 + MOST_MAPPED * page_ranges::LEN as u64;

impl WorkingSetFile {
    /// The place in `directory` of the set of snapshot `id`, with `memory` bytes of memory. Reads nothing
    /// yet.
    pub fn of(directory: &Path, id: &str, memory: u64) -> Arc<Self> {
        let place = Place::Directory { path: directory.to_owned(), id: id.to_owned() };
        Arc::new(Self { place, memory, known: Mutex::default() })
    }

    /// A place for the set of a fork's children.
    ///
    /// # Errors
    /// The host refuses a file in memory.
    pub fn of_children(memory: u64) -> Result<Arc<Self>> {
        let file = of_fixed_length("volt-working-set", SHARED_LEN)
            .map_err(|errno| Error::host("create a working set for a fork's children", errno))?;
        Ok(Self::shared(file, memory))
    }

    /// The place that the file of another process's [`WorkingSetFile::of_children`] is.
    pub fn shared(file: File, memory: u64) -> Arc<Self> {
        Arc::new(Self { place: Place::Shared(file), memory, known: Mutex::default() })
    }

    /// The file that a fork's parent and children share.
    pub fn shared_file(&self) -> Option<&File> {
        match &self.place {
            Place::Directory { .. } => None,
            Place::Shared(file) => Some(file),
        }
    }

    /// Bytes of the snapshot's memory.
    pub fn memory(&self) -> u64 {
        self.memory
    }

    /// The set, if one was recorded.
    ///
    /// # Errors
    /// As [`WorkingSet::open`].
    pub fn set(&self) -> Result<Option<Arc<WorkingSet>>> {
        let mut known = lock(&self.known);
        if let Some(set) = &*known {
            return Ok(set.clone());
        }
        let set = match &self.place {
            Place::Directory { path, id } => WorkingSet::open(path, id, self.memory)?.map(Arc::new),
            // Another process may write it soon.
            Place::Shared(file) => match read_shared(file, self.memory) {
                None => return Ok(None),
                set => set.map(Arc::new),
            },
        };
        Ok(known.insert(set).clone())
    }

    /// Replaces the set. The first one that a child of a fork keeps stays for all of them.
    ///
    /// # Errors
    /// As [`WorkingSet::keep`].
    pub fn keep(&self, set: WorkingSet) -> Result<()> {
        let mut known = lock(&self.known);
        match &self.place {
            Place::Directory { path, id } => set.keep(path, id, self.memory)?,
            Place::Shared(file) if read_shared(file, self.memory).is_none() => {
                let bytes = set.encode(SHARED, self.memory);
                // One call writes all of it, and so no two sets are mixed.
                let bytes = [&(bytes.len() as u64).to_le_bytes()[..], &bytes].concat();
                file.write_all_at(&bytes, 0)
                    .map_err(|source| Error::host("keep a working set for a fork's children", source))?;
            }
            Place::Shared(_) => return Ok(()),
        }
        *known = Some(Some(Arc::new(set)));
        Ok(())
    }
}

/// Reads the set of a fork's children. One that another process is writing, or that no child would keep, is
/// as good as none.
fn read_shared(file: &File, memory: u64) -> Option<WorkingSet> {
    let mut len = [0; 8];
    file.read_exact_at(&mut len, 0).ok()?;
    let len = u64::from_le_bytes(len);
    let mut bytes = vec![0; usize::try_from(len).ok().filter(|_| len <= SHARED_LEN - 8)?];
    file.read_exact_at(&mut bytes, 8).ok()?;
    let set = WorkingSet::decode(&bytes[..], SHARED, memory).ok()?.ok()?;
    Some(set).filter(|set| set.written > 0 && set.pages() <= MOST_MAPPED)
}

/// A snapshot's id as a number; one that no snapshot has if `id` is malformed.
fn id_of(id: &str) -> u128 {
    u128::from_str_radix(id, 16).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const MEMORY: u64 = 100 * PAGE;
    const ID: &str = "0123456789abcdef0123456789abcdef";

    fn set() -> WorkingSet {
        WorkingSet::of(MEMORY, [7, 8, 9, 3, 8, 4, 99, 0].map(|page| page * PAGE))
    }

    #[test]
    fn pages_are_kept_in_the_order_of_their_first_touch() {
        let runs: Vec<_> = set().page_ranges().iter().map(|run| run.start / PAGE..run.end / PAGE).collect();
        assert_eq!(runs, [7..10, 3..5, 99..100, 0..1]);
        assert_eq!(set().pages(), 7);
    }

    #[test]
    fn written_pages_come_first_and_are_told_from_others() {
        let directory = crate::testing::ScratchDir::new();
        let (mut written, mut read) = (PageSet::none(MEMORY), PageSet::none(MEMORY));
        written.add(5 * PAGE..7 * PAGE);
        written.add(90 * PAGE..91 * PAGE);
        read.add(2 * PAGE..5 * PAGE);
        let set = WorkingSet::of_written(&written, &read);
        set.keep(&directory, ID, MEMORY).unwrap();
        let found = WorkingSet::open(&directory, ID, MEMORY).unwrap().unwrap();
        assert_eq!(found, set);
        assert_eq!(found.written(), [5 * PAGE..7 * PAGE, 90 * PAGE..91 * PAGE]);
        assert_eq!(found.others(), &vec![2 * PAGE..5 * PAGE; 1]);
        let forged = WorkingSet { written: 4, ..set };
        forged.keep(&directory, ID, MEMORY).unwrap();
        let error = WorkingSet::open(&directory, ID, MEMORY).unwrap_err().to_string();
        assert!(error.contains("a wrong number of written ranges"), "{error}");
        fs::write(directory.join("short"), &fs::read(directory.join(WORKING_SET_FILE)).unwrap()[..44])
            .unwrap();
        let error = WorkingSet::read(&directory.join("short"), ID, MEMORY).unwrap_err().to_string();
        assert!(error.contains(NOT_ONE), "{error}");
    }

    #[test]
    fn working_set_is_found_and_can_be_replaced() {
        let directory = crate::testing::ScratchDir::new();
        assert_eq!(WorkingSet::open(&directory, ID, MEMORY).unwrap(), None);
        set().keep(&directory, ID, MEMORY).unwrap();
        assert_eq!(WorkingSet::open(&directory, ID, MEMORY).unwrap(), Some(set()));
        let none = WorkingSet::of(MEMORY, []);
        none.keep(&directory, ID, MEMORY).unwrap();
        assert_eq!(WorkingSet::open(&directory, ID, MEMORY).unwrap(), Some(none));
        let mut pages = PageSet::none(MEMORY);
        pages.add(8 * PAGE..9 * PAGE);
        pages.add(0..PAGE);
        let left: Vec<_> = set()
            .page_ranges_without(Some(&pages))
            .iter()
            .map(|run| run.start / PAGE..run.end / PAGE)
            .collect();
        assert_eq!(left, [7..8, 9..10, 3..5, 99..100]);
        let error = WorkingSet::open(&directory, ID, MEMORY + PAGE).unwrap_err().to_string();
        assert!(error.contains("working-set") && error.contains("of another snapshot"), "{error}");
        assert_eq!(fs::read_dir(&*directory).unwrap().count(), 1, "nothing is left beside it");
        let path = directory.join(WORKING_SET_FILE);
        fs::remove_file(&path).unwrap();
        fs::write(&path, vec![0; 1 << 20]).unwrap();
        WorkingSet::open(&directory, ID, MEMORY).unwrap_err();
        fs::remove_file(&path).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
            .unwrap();
        let error = WorkingSet::open(&directory, ID, MEMORY).unwrap_err().to_string();
        assert!(error.contains("working-set: is not a regular file"), "{error}");
        fs::remove_dir_all(&*directory).unwrap();
        assert!(set().keep(&directory, ID, MEMORY).unwrap_err().to_string().contains("working-set"));
    }

    #[test]
    fn first_shared_set_that_is_whole_stays() {
        let place = WorkingSetFile::of_children(MEMORY).unwrap();
        let file = place.shared_file().unwrap();
        let another = || WorkingSetFile::shared(file.try_clone().unwrap(), MEMORY);
        let (before, first) = (another(), WorkingSet { written: 2, ..set() });
        assert_eq!(before.set().unwrap(), None);
        let whole = first.encode(SHARED, MEMORY);
        let with_len = |len: usize, set: &[u8]| [&len.to_le_bytes()[..], set].concat();
        let unwritten = set().encode(SHARED, MEMORY);
        for wrong in [
            with_len(whole.len(), &whole[..whole.len() - 9]),
            with_len(whole.len() - 1, &whole),
            with_len(usize::MAX, &whole),
            with_len(SHARED_LEN as usize - 7, &whole),
            with_len(unwritten.len(), &unwritten),
        ] {
            file.write_all_at(&wrong, 0).unwrap();
            assert_eq!(another().set().unwrap(), None);
        }
        before.keep(first.clone()).unwrap();
        another().keep(WorkingSet { written: 1, ..set() }).unwrap();
        for reader in [&place, &another()] {
            assert_eq!(reader.set().unwrap().as_deref(), Some(&first));
        }
        assert_eq!(WorkingSetFile::shared(file.try_clone().unwrap(), 2 * MEMORY).set().unwrap(), None);
        // No child makes it longer, shorter, or unchangeable.
        assert!(file.set_len(SHARED_LEN + 1).is_err() && file.set_len(0).is_err());
        rustix::fs::fcntl_add_seals(file, rustix::fs::SealFlags::WRITE).unwrap_err();
    }

    #[test]
    fn shared_set_of_too_many_pages_is_none() {
        let memory = 2 * MOST_MAPPED * PAGE;
        let place = |pages: u64| {
            let place = WorkingSetFile::of_children(memory).unwrap();
            let runs = (0..pages).map(|page| 2 * page * PAGE..(2 * page + 1) * PAGE).collect();
            place.keep(WorkingSet { runs, written: 1 }).unwrap();
            WorkingSetFile::shared(place.shared_file().unwrap().try_clone().unwrap(), memory)
        };
        assert_eq!(place(MOST_MAPPED).set().unwrap().unwrap().pages(), MOST_MAPPED);
        let all = WorkingSet { runs: vec![0..PAGE, PAGE..memory].into(), written: 1 };
        let large = WorkingSetFile::of_children(memory).unwrap();
        large.keep(all).unwrap();
        assert!(read_shared(large.shared_file().unwrap(), memory).is_none());
    }

    #[test]
    fn pages_that_split_a_set_too_often_leave_the_rest_whole() {
        let cuts = MOST_CUTS as u64;
        let memory = (2 * cuts + 1000) * PAGE;
        let mut pages = PageSet::none(memory);
        let word = 0xaaaa_aaaa_aaaa_aaaa_u64.to_le_bytes();
        pages.add_bytes(0, &word.repeat((memory / PAGE / 64) as usize));
        let set = WorkingSet { runs: vec![0..memory - PAGE, memory - PAGE..memory].into(), written: 0 };
        let runs = set.page_ranges_without(Some(&pages));
        assert_eq!(runs.len(), MOST_CUTS + 2);
        assert!(runs[..MOST_CUTS].iter().all(|run| run.end - run.start == PAGE && !pages.has(run.start)));
        assert_eq!(runs[MOST_CUTS..], [2 * cuts * PAGE..memory - PAGE, memory - PAGE..memory]);
    }

    fn decode(bytes: &[u8], id: &str) -> std::result::Result<WorkingSet, String> {
        WorkingSet::decode(bytes, id, MEMORY).unwrap()
    }

    #[test]
    fn flipped_byte_or_truncation_is_noticed() {
        for set in [set(), WorkingSet { written: 2, ..set() }] {
            let bytes = set.encode(ID, MEMORY);
            for at in 0..bytes.len() {
                let mut other = bytes.clone();
                other[at] ^= 0x10;
                assert!(decode(&other, ID).is_err(), "{at}");
                assert!(decode(&bytes[..at], ID).is_err(), "{at}");
            }
            assert_eq!(decode(&bytes, ID), Ok(set));
        }
        let bytes = set().encode(ID, MEMORY);
        let other = ID.replace('0', "1");
        let problem = decode(&bytes, &other).unwrap_err();
        assert!(problem.contains(&format!("of another snapshot: of {ID} with 409600 bytes")), "{problem}");
        assert!(problem.contains(&format!("not of {other} with 409600")), "{problem}");
    }

    #[test]
    fn working_set_with_missing_or_repeated_pages_is_refused() {
        let bytes = WorkingSet { runs: vec![0..PAGE, 0..PAGE].into(), written: 0 }.encode(ID, MEMORY);
        assert!(decode(&bytes, ID).is_err());
    }
}
