//! Reads the serial log, also while it is written.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::log::number_of;
pub(crate) use super::record::LogRecord;

/// A reader of the log in these files.
#[derive(Debug)]
pub(crate) struct LogReader {
    /// Opened once: a VM's directory may be removed while its log is read.
    files: [File; 2],
    /// Number of the file that is read, and the place in it.
    place: Option<(u64, u64)>,
    /// The beginning of a record whose end is not written yet.
    rest: Vec<u8>,
}

impl LogReader {
    /// Opens the files of a log.
    ///
    /// # Errors
    /// The files cannot be read.
    pub(crate) fn open([newer, older]: [PathBuf; 2]) -> io::Result<Self> {
        let files = [File::open(newer)?, File::open(older)?];
        Ok(Self { files, place: None, rest: Vec::new() })
    }

    /// Reads what was written since the last call: whole records, each with its newline.
    ///
    /// # Errors
    /// The files cannot be read.
    pub(crate) fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut records = std::mem::take(&mut self.rest);
        let mut files = Vec::new();
        for file in &self.files {
            let bytes = read_whole(file)?;
            files.extend(number_of(&bytes).map(|(number, start)| (number, start as u64, bytes)));
        }
        files.sort_by_key(|(number, ..)| *number);
        for (number, start, bytes) in files {
            let from = match self.place {
                Some((at, _)) if at > number => continue,
                Some((at, place)) if at == number => place,
                _ => start,
            };
            let new = bytes.get(from as usize..).unwrap_or_default();
            records.extend_from_slice(new);
            self.place = Some((number, from + new.len() as u64));
        }
        let end = records.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        self.rest = records.split_off(end);
        Ok(records)
    }

    /// Whether something was written since the last call of [`LogReader::read`].
    pub(crate) fn has_more(&self) -> bool {
        let length = |file: &File| file.metadata().map_or(0, |found| found.len());
        let number = |file: &File| {
            let mut head = [0; 64];
            let count = file.read_at(&mut head, 0).unwrap_or(0);
            number_of(&head[..count]).map(|(number, _)| number)
        };
        self.files.iter().any(|file| match (number(file), self.place) {
            (Some(number), Some((at, place))) => number > at || number == at && length(file) > place,
            (Some(_), None) => true,
            (None, _) => false,
        })
    }
}

/// Reads a file from its start to its present end.
fn read_whole(mut file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Splits records.
pub(crate) fn records(bytes: &[u8]) -> impl DoubleEndedIterator<Item = LogRecord<'_>> {
    let lines = bytes.split(|byte| *byte == b'\n');
    lines.filter_map(LogRecord::parse)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::super::log::tests::begin;
    use super::*;
    use crate::rest::testing::Dir;

    fn text(read: &[u8]) -> String {
        records(read).map(|record| String::from_utf8_lossy(record.text) + "|").collect()
    }

    #[test]
    fn each_record_is_read_once_also_over_a_change_of_files() {
        let dir = Dir::new();
        let (mut log, paths) = begin(&dir);
        let mut reader = LogReader::open(paths).unwrap();
        let now = SystemTime::UNIX_EPOCH;
        log.add(b"a\nb\nlogin: ", now);
        assert!(reader.has_more());
        assert_eq!(text(&reader.read().unwrap()), "a|b|");
        assert!(!reader.has_more());
        log.flush(now);
        assert_eq!(text(&reader.read().unwrap()), "login: |");
        let mut seen = 0;
        for number in 0..3000 {
            log.add(format!("{number:01000}\n").as_bytes(), now);
            if number % 100 == 99 {
                for record in records(&reader.read().unwrap()) {
                    assert_eq!(str::from_utf8(record.text).unwrap().parse(), Ok(seen));
                    seen += 1;
                }
            }
        }
        assert_eq!(seen, 3000);
    }

    #[test]
    fn new_reader_finds_the_kept_part_in_order() {
        let dir = Dir::new();
        let (mut log, paths) = begin(&dir);
        for number in 0..3000 {
            log.add(format!("{number:01000}\n").as_bytes(), SystemTime::UNIX_EPOCH);
        }
        let read = LogReader::open(paths).unwrap().read().unwrap();
        let numbers: Vec<u32> =
            records(&read).map(|record| str::from_utf8(record.text).unwrap().parse().unwrap()).collect();
        assert_eq!(numbers.last(), Some(&2999));
        assert!(numbers.len() > 500 && numbers.windows(2).all(|pair| pair[1] == pair[0] + 1));
    }
}
