//! `working-set`: the pages that a restored guest touched until it had done something, in the order in which it touched them first.
//!
//! ```text
//!   magic | CRC-64/ECMA-182 of the rest | snapshot's id | bytes of memory | runs: first page, pages; each of 32 bits …
//!   8       8                             16              8                 8 each, to the end of the file
//! ```
//!
//! All is little-endian, the runs as [`crate::memory::page_ranges`] has them. It is advice, not content: what it names is read ahead, and a page
//! that it does not name is read when it is touched. It belongs to one snapshot and to those that have been converted from it, or merged
//! of it and its base.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::crc::CRC;
use crate::error::{Error, Result};
use crate::memory::PAGE;
use crate::memory::lazy::prefetch::Runs;
use crate::memory::page_ranges;
use crate::memory::page_set::PageSet;
use crate::partial;
use crate::snapshot::WORKING_SET_FILE;
use crate::snapshot::format::place::SnapshotDir;
use crate::store::dir::NewDir;
use crate::sync::lock;

const MAGIC: &[u8; 8] = b"VOLTWSET";
/// Bytes before the runs.
const HEAD: usize = 40;
/// Bytes of ranges decoded at once.
const STEP: usize = 64 << 10;
/// Pieces that the ranges of a set are cut into, at most: 4 MiB of them.
const MOST_CUTS: usize = 1 << 18;
const NOT_ONE: &str = "is no working set";
const IMPOSSIBLE: &str = "names pages that there are not, or names one twice";

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkingSet {
    /// Ranges of offsets in the order in which they were touched, none of them empty, no page in two.
    runs: Runs,
}

impl WorkingSet {
    /// Of pages, by their offsets, in the order in which they were touched. One that comes again counts the first time.
    #[must_use]
    pub fn of(memory: u64, touched: impl IntoIterator<Item = u64>) -> Self {
        let (mut seen, mut runs) = (PageSet::none(memory), Vec::<std::ops::Range<u64>>::new());
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
        Self { runs: runs.into() }
    }

    /// Ranges of offsets in the order in which they were touched: whole pages, none of them twice.
    #[must_use]
    pub fn runs(&self) -> &Runs {
        &self.runs
    }

    /// How many pages it has.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.runs.iter().map(|run| (run.end - run.start) / PAGE).sum()
    }

    /// How many of its pages another set has too.
    #[must_use]
    pub fn shared_with(&self, other: &Self, memory: u64) -> u64 {
        let mut pages = PageSet::none(memory);
        other.runs.iter().for_each(|run| pages.add(run.clone()));
        let all = self.runs.iter().flat_map(|run| run.clone().step_by(PAGE as usize));
        all.filter(|page| pages.has(*page)).count() as u64
    }

    /// The set that stands beside the snapshot in `directory`, which has this id and so many bytes of memory; none if none was recorded.
    ///
    /// # Errors
    /// It cannot be read, is damaged, or is another snapshot's.
    pub fn open(directory: &Path, id: &str, memory: u64) -> Result<Option<Self>> {
        let path = directory.join(WORKING_SET_FILE);
        match path.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            _ => Self::read(&path, id, memory).map(Some),
        }
    }

    /// The set in the file at `path`, of the snapshot that has this id and so many bytes of memory.
    ///
    /// # Errors
    /// As [`WorkingSet::open`]; or there is no such file.
    pub fn read(path: &Path, id: &str, memory: u64) -> Result<Self> {
        let directory = SnapshotDir::from(path.parent().unwrap_or(path));
        let (file, len) = directory.open_regular(path.file_name().unwrap_or_default())?;
        let wrong = |problem| Error::snapshot(path, format!("{problem}; delete it, and record it again"));
        // No set is longer.
        if len > HEAD as u64 + page_ranges::longest(memory) {
            return Err(wrong(NOT_ONE.to_owned()));
        }
        Self::decode(file.take(len), id, memory)
            .map_err(|source| Error::file("read", path.display(), source))?
            .map_err(wrong)
    }

    /// Its ranges without these pages, if there are any. A list of pages that cuts them into more than
    /// [`MOST_CUTS`] pieces, as a forged one may, leaves the rest whole: they are advice.
    #[must_use]
    pub fn runs_without(&self, pages: Option<&PageSet>) -> Runs {
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

    /// Puts it beside the snapshot in `directory`, in the place of one that was there: whole, or not at all.
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
            fs::rename(&temporary, &path)?;
            File::open(directory)?.sync_all()
        };
        write().map_err(|source| {
            let _ = fs::remove_file(&temporary);
            failed(source)
        })
    }

    /// Puts it into a snapshot that is being made, of the same id and memory.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn carry(&self, dir: &NewDir, id: &str, memory: u64) -> Result<()> {
        let mut file = dir.create(WORKING_SET_FILE)?;
        let written = file.write_all(&self.encode(id, memory)).and_then(|()| file.sync_all());
        written.map_err(|source| dir.failed_to_write(WORKING_SET_FILE, source))
    }

    fn encode(&self, id: &str, memory: u64) -> Vec<u8> {
        let mut rest = Vec::with_capacity(HEAD + self.runs.len() * page_ranges::LEN);
        rest.extend(id_of(id).to_le_bytes());
        rest.extend(memory.to_le_bytes());
        rest.extend(page_ranges::encode(&self.runs));
        let mut bytes = MAGIC.to_vec();
        bytes.extend(CRC.checksum(&rest).to_le_bytes());
        bytes.extend(rest);
        bytes
    }

    /// Decodes it as it is read, and stops at the first range that cannot be: it takes as much memory as there are ranges.
    fn decode(mut from: impl Read, id: &str, memory: u64) -> io::Result<std::result::Result<Self, String>> {
        let mut head = [0; HEAD];
        match from.read_exact(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(Err(NOT_ONE.to_owned())),
            read => read?,
        }
        if head[..8] != *MAGIC {
            return Ok(Err(NOT_ONE.to_owned()));
        }
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
        let mut digest = CRC.digest();
        digest.update(&head[16..]);
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
                "is the working set of another snapshot: of {of:032x} with {other} bytes of memory, not of {id} with {memory}"
            )));
        }
        if !page_ranges::are_apart(&ranges) {
            return Ok(Err(IMPOSSIBLE.to_owned()));
        }
        Ok(Ok(Self { runs: ranges.into() }))
    }
}

/// What is to be read ahead of a VM. What of it lies under other pages is found out once its guest runs.
#[derive(Debug)]
pub(crate) struct Plan {
    pub set: Arc<WorkingSet>,
    /// Pages that lie over the base, if it is a diff's VM.
    pub over: Option<Arc<PageSet>>,
}

/// Where the working set of a snapshot is, and what is known of it.
#[derive(Debug)]
pub(crate) struct WorkingSetFile {
    directory: PathBuf,
    id: String,
    memory: u64,
    /// Once it has been looked for.
    known: Mutex<Option<Option<Arc<WorkingSet>>>>,
}

impl WorkingSetFile {
    /// That of the snapshot in `directory`, which has this id and so many bytes of memory. Nothing is looked at yet.
    pub fn of(directory: &Path, id: &str, memory: u64) -> Arc<Self> {
        Arc::new(Self { directory: directory.to_owned(), id: id.to_owned(), memory, known: Mutex::default() })
    }

    /// Bytes of memory.
    pub fn memory(&self) -> u64 {
        self.memory
    }

    /// The set, if one was recorded. It is read once.
    ///
    /// # Errors
    /// As [`WorkingSet::open`].
    pub fn set(&self) -> Result<Option<Arc<WorkingSet>>> {
        let mut known = lock(&self.known);
        if let Some(set) = &*known {
            return Ok(set.clone());
        }
        let set = WorkingSet::open(&self.directory, &self.id, self.memory)?.map(Arc::new);
        Ok(known.insert(set).clone())
    }

    /// Puts this one in its place.
    ///
    /// # Errors
    /// As [`WorkingSet::keep`].
    pub fn keep(&self, set: WorkingSet) -> Result<()> {
        let mut known = lock(&self.known);
        set.keep(&self.directory, &self.id, self.memory)?;
        *known = Some(Some(Arc::new(set)));
        Ok(())
    }
}

/// A snapshot's id as a number. What is none is nobody's.
fn id_of(id: &str) -> u128 {
    u128::from_str_radix(id, 16).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: u64 = 100 * PAGE;
    const ID: &str = "0123456789abcdef0123456789abcdef";

    fn set() -> WorkingSet {
        WorkingSet::of(MEMORY, [7, 8, 9, 3, 8, 4, 99, 0].map(|page| page * PAGE))
    }

    #[test]
    fn pages_are_kept_in_the_order_of_their_first_touch() {
        let runs: Vec<_> = set().runs().iter().map(|run| run.start / PAGE..run.end / PAGE).collect();
        assert_eq!(runs, [7..10, 3..5, 99..100, 0..1]);
        assert_eq!(set().pages(), 7);
    }

    #[test]
    fn what_is_kept_is_found_and_can_be_replaced() {
        let directory = std::env::temp_dir().join(format!("volt-working-set-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        assert_eq!(WorkingSet::open(&directory, ID, MEMORY).unwrap(), None);
        set().keep(&directory, ID, MEMORY).unwrap();
        assert_eq!(WorkingSet::open(&directory, ID, MEMORY).unwrap(), Some(set()));
        let none = WorkingSet::of(MEMORY, []);
        none.keep(&directory, ID, MEMORY).unwrap();
        assert_eq!(WorkingSet::open(&directory, ID, MEMORY).unwrap(), Some(none));
        let mut pages = PageSet::none(MEMORY);
        pages.add(8 * PAGE..9 * PAGE);
        pages.add(0..PAGE);
        let left: Vec<_> =
            set().runs_without(Some(&pages)).iter().map(|run| run.start / PAGE..run.end / PAGE).collect();
        assert_eq!(left, [7..8, 9..10, 3..5, 99..100]);
        let error = WorkingSet::open(&directory, ID, MEMORY + PAGE).unwrap_err().to_string();
        assert!(error.contains("working-set") && error.contains("of another snapshot"), "{error}");
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "nothing is left beside it");
        let path = directory.join(WORKING_SET_FILE);
        fs::remove_file(&path).unwrap();
        fs::write(&path, vec![0; 1 << 20]).unwrap();
        WorkingSet::open(&directory, ID, MEMORY).unwrap_err();
        fs::remove_file(&path).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
            .unwrap();
        let error = WorkingSet::open(&directory, ID, MEMORY).unwrap_err().to_string();
        assert!(error.contains("working-set: is not a regular file"), "{error}");
        fs::remove_dir_all(&directory).unwrap();
        assert!(set().keep(&directory, ID, MEMORY).unwrap_err().to_string().contains("working-set"));
    }

    #[test]
    fn pages_that_cut_a_set_too_often_leave_the_rest_of_it_whole() {
        let cuts = MOST_CUTS as u64;
        let memory = (2 * cuts + 1000) * PAGE;
        let mut pages = PageSet::none(memory);
        let word = 0xaaaa_aaaa_aaaa_aaaa_u64.to_le_bytes();
        pages.add_bytes(0, &word.repeat((memory / PAGE / 64) as usize));
        let set = WorkingSet { runs: vec![0..memory - PAGE, memory - PAGE..memory].into() };
        let runs = set.runs_without(Some(&pages));
        assert_eq!(runs.len(), MOST_CUTS + 2);
        assert!(runs[..MOST_CUTS].iter().all(|run| run.end - run.start == PAGE && !pages.has(run.start)));
        assert_eq!(runs[MOST_CUTS..], [2 * cuts * PAGE..memory - PAGE, memory - PAGE..memory]);
    }

    fn decode(bytes: &[u8], id: &str) -> std::result::Result<WorkingSet, String> {
        WorkingSet::decode(bytes, id, MEMORY).unwrap()
    }

    #[test]
    fn every_flipped_byte_and_every_cut_is_noticed() {
        let bytes = set().encode(ID, MEMORY);
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 0x10;
            assert!(decode(&other, ID).is_err(), "{at}");
            assert!(decode(&bytes[..at], ID).is_err(), "{at}");
        }
        assert_eq!(decode(&bytes, ID), Ok(set()));
        let other = ID.replace('0', "1");
        let problem = decode(&bytes, &other).unwrap_err();
        assert!(problem.contains(&format!("of another snapshot: of {ID} with 409600 bytes")), "{problem}");
        assert!(problem.contains(&format!("not of {other} with 409600")), "{problem}");
    }

    #[test]
    fn it_names_pages_that_there_are_once_each() {
        let bytes = WorkingSet { runs: vec![0..PAGE, 0..PAGE].into() }.encode(ID, MEMORY);
        assert!(decode(&bytes, ID).is_err());
    }
}
