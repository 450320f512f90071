//! The log of serial output: two files of at most half the cap, written in turn.
//!
//! Each file begins with its number. Once the newer one is full, the older one is emptied and gets the next
//! number. The process needs no path for that, so a confined thread does it with descriptors made before.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::SystemTime;

use super::record::RecordWriter;

/// Most bytes of a file. Once the log is full, it has the last 512 KiB at least, and 1 MiB at most.
pub(super) const MOST: u64 = 512 << 10;
/// Most bytes of output whose records wait for the file at once: a record of an empty line takes 31 bytes.
const PART: usize = 64 << 10;
/// The first line of a file, before its number.
const TITLE: &str = "# volt-vmm serial log, part ";

/// The first line of the file with this number.
fn title(number: u64) -> String {
    format!("{TITLE}{number}\n")
}

/// The number of a file, and the length of its first line. Returns `None` if it has no whole first line.
pub(super) fn number_of(head: &[u8]) -> Option<(u64, usize)> {
    let end = head.iter().position(|byte| *byte == b'\n')?;
    let number = str::from_utf8(&head[..end]).ok()?.strip_prefix(TITLE)?.parse().ok()?;
    Some((number, end + 1))
}

/// The log, as its only writer has it.
#[derive(Debug)]
pub(crate) struct SerialLog {
    files: [File; 2],
    /// The number of the newer file, which is at this index modulo 2.
    number: u64,
    /// Its length. 0 if it has no first line, because the disk was full: records then belong to no file.
    len: u64,
    records: RecordWriter,
    /// Records that wait for the file.
    pending: Vec<u8>,
    has_failed: bool,
}

impl SerialLog {
    /// Opens the empty files of a new log.
    ///
    /// # Errors
    /// The file system refuses.
    pub(crate) fn begin(paths: [&Path; 2]) -> io::Result<Self> {
        let open = |path| File::options().write(true).open(path);
        let files = [open(paths[0])?, open(paths[1])?];
        let mut log = Self {
            files,
            number: 0,
            len: 0,
            records: RecordWriter::default(),
            pending: Vec::new(),
            has_failed: false,
        };
        log.begin_file()?;
        Ok(log)
    }

    fn file(&self) -> &File {
        &self.files[self.number as usize % 2]
    }

    /// Empties the file of the current number and writes its first line.
    fn begin_file(&mut self) -> io::Result<()> {
        self.len = 0;
        self.file().set_len(0)?;
        self.append(title(self.number).as_bytes())
    }

    /// Adds output of the guest. If it has more than both files hold, the oldest of it is left out.
    pub(super) fn add(&mut self, output: &[u8], now: SystemTime) {
        let left_out = output.len().saturating_sub(2 * MOST as usize);
        if left_out > 0 {
            // The line that has begun does not go on with what follows.
            self.flush(now);
        }
        for part in output[left_out..].chunks(PART) {
            self.records.add(part, now, &mut self.pending);
            self.write_pending();
        }
    }

    /// Whether the guest has begun a line.
    pub(super) fn is_in_line(&self) -> bool {
        self.records.is_in_line()
    }

    /// Writes the line that the guest has begun.
    pub(super) fn flush(&mut self, now: SystemTime) {
        self.records.flush(now, &mut self.pending);
        self.write_pending();
    }

    /// A record that the file system refuses is lost, because the guest must not wait for the disk.
    fn write_pending(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        if let Err(error) = self.write(&pending)
            && !std::mem::replace(&mut self.has_failed, true)
        {
            log::warn!("cannot write the serial log: {error}; output is lost");
        }
    }

    /// Writes whole records, and goes on in the other file where one is full.
    fn write(&mut self, mut records: &[u8]) -> io::Result<()> {
        while !records.is_empty() {
            if self.len == 0 {
                self.begin_file()?;
            }
            let room = records.len().min((MOST - self.len) as usize);
            let fits = records[..room].iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            let (fitting, rest) = records.split_at(fits);
            self.append(fitting)?;
            if !rest.is_empty() {
                self.number += 1;
                self.len = 0;
            }
            records = rest;
        }
        Ok(())
    }

    /// Appends bytes whole, or nothing of them.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file().write_all_at(bytes, self.len).inspect_err(|_| {
            // A part of a record would damage the next one.
            let _ = self.file().set_len(self.len);
        })?;
        self.file().flush()?;
        self.len += bytes.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::rest::testing::Dir;

    /// Begins a log in a directory.
    pub(in crate::serial) fn begin(dir: &Dir) -> (SerialLog, [std::path::PathBuf; 2]) {
        let paths = ["0", "1"].map(|name| dir.path(name));
        paths.iter().for_each(|path| std::fs::write(path, "").unwrap());
        (SerialLog::begin([&paths[0], &paths[1]]).unwrap(), paths)
    }

    #[test]
    fn log_stays_below_its_cap_and_keeps_the_newer_part() {
        let dir = Dir::new();
        let (mut log, paths) = begin(&dir);
        let line = format!("{}\n", "x".repeat(1000));
        for _ in 0..5000 {
            log.add(line.as_bytes(), SystemTime::UNIX_EPOCH);
        }
        let texts = paths.map(|path| std::fs::read(path).unwrap());
        let numbers: Vec<_> = texts.iter().map(|text| number_of(text).unwrap().0).collect();
        assert!(numbers[0].abs_diff(numbers[1]) == 1 && numbers[0] >= 8, "{numbers:?}");
        assert!(texts.iter().all(|text| text.len() as u64 <= MOST), "{}", texts[0].len());
        assert!(texts.iter().any(|text| text.len() as u64 > MOST - 2000));
    }

    #[test]
    fn much_output_at_once_stays_below_the_cap() {
        let dir = Dir::new();
        let (mut log, paths) = begin(&dir);
        let text = |path| String::from_utf8(std::fs::read(path).unwrap()).unwrap();
        let short_lines = (0..4 << 18).map(|number| format!("{:03}\n", number % 1000)).collect::<String>();
        for output in ["\n".repeat(4 << 20), "x".repeat(4 << 20), short_lines + "the last\n"] {
            log.add(b"begun", SystemTime::UNIX_EPOCH);
            log.add(output.as_bytes(), SystemTime::UNIX_EPOCH);
            for path in &paths {
                let text = text(path);
                assert!(text.len() as u64 <= MOST, "{}", text.len());
                let mut records = text.lines().skip(1);
                assert!(
                    records.all(|line| crate::serial::record::LogRecord::parse(line.as_bytes()).is_some())
                );
            }
            assert!(paths.iter().any(|path| text(path).len() as u64 > MOST - 5000), "one is full");
        }
        assert!(paths.iter().any(|path| text(path).ends_with(" F the last\n")));
    }

    #[test]
    fn file_gets_its_first_line_once_the_disk_has_room() {
        let dir = Dir::new();
        let (mut log, paths) = begin(&dir);
        let line = format!("{}\n", "x".repeat(1000));
        while log.len + 2000 < MOST {
            log.add(line.as_bytes(), SystemTime::UNIX_EPOCH);
        }
        // A file that may not be written stands for a full disk.
        let (second, full) = (log.files[1].try_clone().unwrap(), File::open(&paths[1]).unwrap());
        log.files[1] = full;
        (0..3).for_each(|_| log.add(line.as_bytes(), SystemTime::UNIX_EPOCH));
        assert_eq!((log.number, std::fs::read(&paths[1]).unwrap().len()), (1, 0));
        log.files[1] = second;
        log.add(b"again\n", SystemTime::UNIX_EPOCH);
        let text = std::fs::read_to_string(&paths[1]).unwrap();
        assert!(text.starts_with(&title(1)) && text.ends_with("again\n"), "{text}");
    }

    #[test]
    fn number_is_read_from_a_whole_first_line() {
        assert_eq!(number_of(title(7).as_bytes()), Some((7, title(7).len())));
        assert_eq!(number_of(b"# volt-vmm serial log, part 7"), None);
        assert_eq!(number_of(b"other\n"), None);
        assert_eq!(number_of(b""), None);
    }
}
