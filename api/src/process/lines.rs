//! Files and FIFOs that get whole lines. No call waits for the reader of a FIFO.

use std::fs::File;
use std::io::{self, ErrorKind, Write};

/// An open file whose readers see whole lines. A line of which only a part fitted is continued by the next
/// call.
#[derive(Debug)]
pub(crate) struct LineFile<W = File> {
    file: W,
    /// The rest of a line that the file had no room for.
    rest: Vec<u8>,
}

impl<W: Write> LineFile<W> {
    pub(crate) fn new(file: W) -> Self {
        Self { file, rest: Vec::new() }
    }

    /// Writes a line, which ends with a newline. Without room for its first byte the line is lost.
    ///
    /// # Errors
    /// The FIFO or the disk is full, or the host refuses. The line is lost.
    pub(crate) fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let sent = send(&mut self.file, &self.rest)?;
        self.rest.drain(..sent);
        if !self.rest.is_empty() {
            return Err(ErrorKind::WouldBlock.into());
        }
        match send(&mut self.file, line)? {
            0 => Err(ErrorKind::WouldBlock.into()),
            sent => {
                self.rest.extend_from_slice(&line[sent..]);
                Ok(())
            }
        }
    }
}

/// Writes as much as there is room for.
///
/// # Errors
/// The host refuses the first byte.
fn send(file: &mut impl Write, bytes: &[u8]) -> io::Result<usize> {
    let mut sent = 0;
    while sent < bytes.len() {
        match file.write(&bytes[sent..]) {
            Ok(0) => break,
            Ok(more) => sent += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // The next call reports it, if it stays.
            Err(_) if sent > 0 => break,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(sent)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use rustix::fs::{CWD, FileType, Mode};

    use super::*;
    use crate::process::output_file::open;
    use crate::rest::testing::Dir;

    #[test]
    fn full_fifo_loses_whole_lines_and_tears_none() {
        let dir = Dir::new();
        let path = dir.path("fifo");
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
        let mut lines = LineFile::new(open("open metrics", &path).unwrap());
        let mut reader = open("read metrics", &path).unwrap();
        let line = |number: usize| format!("{number}{}\n", "x".repeat(30_000)).into_bytes();
        let kept: Vec<usize> = (0..9).filter(|number| lines.write(&line(*number)).is_ok()).collect();
        assert!(kept.len() >= 2 && kept.len() < 9, "{kept:?}");
        let mut read = Vec::new();
        let mut drain = |read: &mut Vec<u8>| {
            let mut bytes = [0; 4096];
            while let Ok(count) = reader.read(&mut bytes) {
                read.extend_from_slice(&bytes[..count]);
            }
        };
        drain(&mut read);
        lines.write(&line(9)).unwrap();
        drain(&mut read);
        let wanted: Vec<u8> = kept.into_iter().chain([9]).flat_map(line).collect();
        assert!(read == wanted, "{} bytes, not {}", read.len(), wanted.len());
    }

    /// A disk with room for so many bytes.
    struct Disk {
        room: usize,
        content: Vec<u8>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let fitting = &bytes[..bytes.len().min(self.room)];
            if fitting.is_empty() {
                return Err(ErrorKind::StorageFull.into());
            }
            self.room -= fitting.len();
            self.content.extend_from_slice(fitting);
            Ok(fitting.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn full_disk_loses_whole_lines_and_tears_none() {
        let mut lines = LineFile::new(Disk { room: 7, content: Vec::new() });
        lines.write(b"one\n").unwrap();
        lines.write(b"second\n").unwrap();
        for _ in 0..2 {
            assert_eq!(lines.write(b"lost\n").unwrap_err().kind(), ErrorKind::StorageFull);
        }
        lines.file.room = 1;
        assert_eq!(lines.write(b"lost\n").unwrap_err().kind(), ErrorKind::WouldBlock);
        lines.file.room = 100;
        lines.write(b"last\n").unwrap();
        assert_eq!(lines.file.content, b"one\nsecond\nlast\n");
    }

    #[test]
    fn missing_directory_is_an_error_that_names_the_act() {
        let error = volt_vmm::report(&open("open metrics", "/missing/m".as_ref()).unwrap_err());
        assert!(error.starts_with("cannot open metrics /missing/m: No such file"), "{error}");
    }
}
