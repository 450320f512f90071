//! Records of the serial log: one a line, with the time at which the line ended.
//!
//! ```text
//!   2026-11-27T12:00:00.123456Z F login: root        a whole line
//!   2026-11-27T12:00:01.000000Z P Password:          the beginning of a line that has not ended
//! ```
//!
//! The bytes of a record are the guest's, so they may be no text. A record ends at its newline.

use std::time::SystemTime;

/// Longest text of a record. A longer line becomes several.
const LONGEST: usize = 4096;
/// Length of a time.
const TIME: usize = "2026-11-27T12:00:00.123456Z".len();
/// Bytes before the text: time, blank, kind, blank.
const HEAD: usize = TIME + 3;

/// Makes records of output.
#[derive(Debug, Default)]
pub(super) struct RecordWriter {
    /// The line that has not ended.
    line: Vec<u8>,
}

impl RecordWriter {
    /// Adds output to `into`, as far as lines end.
    pub(super) fn add(&mut self, output: &[u8], now: SystemTime, into: &mut Vec<u8>) {
        for part in output.split_inclusive(|byte| *byte == b'\n') {
            match part.strip_suffix(b"\n") {
                Some(rest) => {
                    self.extend(rest, now, into);
                    record(b'F', &self.line, now, into);
                    self.line.clear();
                }
                None => self.extend(part, now, into),
            }
        }
    }

    fn extend(&mut self, bytes: &[u8], now: SystemTime, into: &mut Vec<u8>) {
        self.line.extend_from_slice(bytes);
        while self.line.len() > LONGEST {
            record(b'P', &self.line[..LONGEST], now, into);
            self.line.drain(..LONGEST);
        }
    }

    /// Whether a line has begun.
    pub(super) fn is_in_line(&self) -> bool {
        !self.line.is_empty()
    }

    /// Writes the line that has begun as a part.
    pub(super) fn flush(&mut self, now: SystemTime, into: &mut Vec<u8>) {
        if self.is_in_line() {
            record(b'P', &self.line, now, into);
            self.line.clear();
        }
    }
}

fn record(kind: u8, text: &[u8], now: SystemTime, into: &mut Vec<u8>) {
    into.extend_from_slice(humantime::format_rfc3339_micros(now).to_string().as_bytes());
    into.extend_from_slice(&[b' ', kind, b' ']);
    into.extend_from_slice(text);
    into.push(b'\n');
}

/// A record as it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogRecord<'a> {
    /// RFC 3339 in UTC, which sorts as text.
    pub(crate) time: &'a str,
    /// Whether the guest's line ends here.
    pub(crate) ends_line: bool,
    pub(crate) text: &'a [u8],
}

impl<'a> LogRecord<'a> {
    /// Parses a record without its newline. Returns `None` for a damaged one.
    pub(crate) fn parse(line: &'a [u8]) -> Option<Self> {
        let (head, text) = line.split_at_checked(HEAD)?;
        let (time, kind) = head.split_at(TIME);
        let ends_line = match kind {
            b" F " => true,
            b" P " => false,
            _ => return None,
        };
        Some(Self { time: str::from_utf8(time).ok()?, ends_line, text })
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn written(pieces: &[&[u8]]) -> Vec<u8> {
        let (mut writer, mut log) = (RecordWriter::default(), Vec::new());
        let now = UNIX_EPOCH + Duration::from_micros(1_500_000);
        pieces.iter().for_each(|piece| writer.add(piece, now, &mut log));
        writer.flush(now, &mut log);
        log
    }

    fn read(log: &[u8]) -> Vec<u8> {
        let lines = log.split_inclusive(|byte| *byte == b'\n');
        let records = lines.map(|line| LogRecord::parse(line.strip_suffix(b"\n").unwrap()).unwrap());
        records
            .flat_map(|record| [record.text, if record.ends_line { b"\n" } else { b"" }].concat())
            .collect()
    }

    #[test]
    fn line_has_its_time_and_kind() {
        assert_eq!(
            written(&[b"a", b"b\nlogin: "]),
            b"1970-01-01T00:00:01.500000Z F ab\n1970-01-01T00:00:01.500000Z P login: \n"
        );
    }

    #[test]
    fn output_comes_back_as_the_guest_wrote_it() {
        let long = "x".repeat(3 * LONGEST + 7);
        for pieces in [
            &[b"hello\n".as_slice()][..],
            &[b"\n\n", b"", b"a\r\n", b"\0\xff\x1b[2J\n", b"end"],
            &[long.as_bytes(), b"\n", long.as_bytes()],
        ] {
            assert_eq!(read(&written(pieces)), pieces.concat());
        }
    }

    #[test]
    fn damaged_record_is_none() {
        for line in [&b""[..], b"short", b"1970-01-01T00:00:01.500000Z X ab", &[0xff; 40]] {
            assert_eq!(LogRecord::parse(line), None);
        }
    }
}
