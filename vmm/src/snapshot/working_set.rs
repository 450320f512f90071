//! `working-set`: the pages that a restored guest touched until it had done something, in the order in which it touched them first.
//!
//! ```text
//!   magic | CRC-64/ECMA-182 of the rest | snapshot's id | bytes of memory | runs: first page, pages; each of 32 bits …
//!   8       8                             16              8                 8 each, to the end of the file
//! ```
//!
//! All is little-endian. It is advice, not content: what it names is read ahead, and a page that it does not name is read when it is
//! touched. It belongs to one snapshot and to those that have been converted from it.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::WORKING_SET_FILE;
use super::manifest::CRC;
use super::reader::open_regular;
use crate::error::{Error, Result};
use crate::memory::PAGE;
use crate::memory::pages::PageSet;
use crate::store::dir::random_hex;

const MAGIC: &[u8; 8] = b"VOLTWSET";
/// Bytes before the runs.
const HEAD: usize = 40;
/// Bytes of a run.
const RUN: usize = 8;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkingSet {
    /// Ranges of offsets in the order in which they were touched, none of them empty, no page in two.
    runs: Vec<Range<u64>>,
}

impl WorkingSet {
    /// Of pages, by their offsets, in the order in which they were touched. One that comes again counts the first time.
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
        Self { runs }
    }

    /// Ranges of offsets in the order in which they were touched: whole pages, none of them twice.
    #[must_use]
    pub fn runs(&self) -> &[Range<u64>] {
        &self.runs
    }

    /// How many pages it has.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.runs.iter().map(|run| (run.end - run.start) / PAGE).sum()
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
        let (file, len) = open_regular(path.parent().unwrap_or(path), path)?;
        let mut bytes = Vec::new();
        // No set is longer.
        let most = HEAD as u64 + memory / PAGE * RUN as u64;
        file.take(len.min(most + 1))
            .read_to_end(&mut bytes)
            .map_err(|source| Error::file("read", path.display(), source))?;
        Self::decode(&bytes, id, memory)
            .map_err(|problem| Error::snapshot(path, format!("{problem}; delete it, and record it again")))
    }

    /// Puts it beside the snapshot in `directory`, in the place of one that was there: whole, or not at all.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn keep(&self, directory: &Path, id: &str, memory: u64) -> Result<()> {
        let path = directory.join(WORKING_SET_FILE);
        let partial = directory.join(format!(".{WORKING_SET_FILE}.{}.partial", random_hex()?));
        let write = || {
            let mut file = File::options().write(true).create_new(true).mode(0o400).open(&partial)?;
            file.write_all(&self.encode(id, memory))?;
            file.sync_all()?;
            fs::rename(&partial, &path)?;
            File::open(directory)?.sync_all()
        };
        write().map_err(|source| {
            let _ = fs::remove_file(&partial);
            Error::file("write", path.display(), source)
        })
    }

    fn encode(&self, id: &str, memory: u64) -> Vec<u8> {
        let mut rest = Vec::with_capacity(HEAD + self.runs.len() * RUN);
        rest.extend(id_of(id).to_le_bytes());
        rest.extend(memory.to_le_bytes());
        for run in &self.runs {
            for number in [run.start / PAGE, (run.end - run.start) / PAGE] {
                rest.extend((number as u32).to_le_bytes()); // 16 TiB of memory
            }
        }
        let mut bytes = MAGIC.to_vec();
        bytes.extend(CRC.checksum(&rest).to_le_bytes());
        bytes.extend(rest);
        bytes
    }

    fn decode(bytes: &[u8], id: &str, memory: u64) -> std::result::Result<Self, String> {
        if bytes.len() < HEAD || bytes[..8] != *MAGIC || !(bytes.len() - HEAD).is_multiple_of(RUN) {
            return Err("is no working set".to_owned());
        }
        let (head, runs) = bytes.split_at(HEAD);
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
        if word(8) != CRC.checksum(&bytes[16..]) {
            return Err("is damaged".to_owned());
        }
        let of = u128::from_le_bytes(head[16..32].try_into().expect("16 bytes"));
        if (of, word(32)) != (id_of(id), memory) {
            let other = word(32);
            return Err(format!(
                "is the working set of another snapshot: of {of:032x} with {other} bytes of memory, not of {id} with {memory}"
            ));
        }
        let (mut seen, mut found) = (PageSet::none(memory), Vec::with_capacity(runs.len() / RUN));
        for run in runs.chunks_exact(RUN) {
            let number =
                |at: usize| u64::from(u32::from_le_bytes(run[at..at + 4].try_into().expect("4 bytes")));
            let (start, end) = (number(0) * PAGE, (number(0) + number(4)) * PAGE);
            if start == end || end > memory || (start..end).step_by(PAGE as usize).any(|page| seen.has(page))
            {
                return Err("names pages that there are not, or names one twice".to_owned());
            }
            seen.add(start..end);
            found.push(start..end);
        }
        Ok(Self { runs: found })
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
        let error = WorkingSet::open(&directory, ID, MEMORY + PAGE).unwrap_err().to_string();
        assert!(error.contains("working-set") && error.contains("of another snapshot"), "{error}");
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "nothing is left beside it");
        fs::remove_dir_all(&directory).unwrap();
        assert!(set().keep(&directory, ID, MEMORY).unwrap_err().to_string().contains("working-set"));
    }

    #[test]
    fn every_flipped_byte_and_every_cut_is_noticed() {
        let bytes = set().encode(ID, MEMORY);
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 0x10;
            assert!(WorkingSet::decode(&other, ID, MEMORY).is_err(), "{at}");
            assert!(WorkingSet::decode(&bytes[..at], ID, MEMORY).is_err(), "{at}");
        }
        assert_eq!(WorkingSet::decode(&bytes, ID, MEMORY), Ok(set()));
        let other = ID.replace('0', "1");
        let problem = WorkingSet::decode(&bytes, &other, MEMORY).unwrap_err();
        assert!(problem.contains(&format!("of another snapshot: of {ID} with 409600 bytes")), "{problem}");
        assert!(problem.contains(&format!("not of {other} with 409600")), "{problem}");
    }

    #[test]
    fn it_names_pages_that_there_are_once_each() {
        for pages in [&[(0, 1), (0, 1)][..], &[(99, 101)], &[(1, 1)]] {
            let runs = pages.iter().map(|(start, end)| start * PAGE..end * PAGE).collect();
            let bytes = WorkingSet { runs }.encode(ID, MEMORY);
            assert!(WorkingSet::decode(&bytes, ID, MEMORY).is_err());
        }
    }
}
