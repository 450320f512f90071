//! Small files of the kernel, such as those of control groups, by three system calls each. A guest whose
//! kernel is emulated takes milliseconds for one that the standard library makes more.

use std::io;

use rustix::fs::{Mode, OFlags, open};
use rustix::path::Arg;

/// Most bytes of one read.
const LONGEST: usize = 4096;

/// Reads a file that the kernel gives whole by one read, if it has at most 4 KiB. A longer one is cut.
pub fn read(path: impl Arg) -> io::Result<String> {
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut buffer = [0; LONGEST];
    let count = rustix::io::read(file, &mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..count]).into_owned())
}

/// Writes to a file that exists.
pub fn write(path: impl Arg, text: &str) -> io::Result<()> {
    let file = open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(file, text.as_bytes())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{read, write};
    use crate::scratch::Scratch;

    #[test]
    fn file_is_read_and_written_and_never_made() {
        let dir = Scratch::new();
        let path = dir.path("file");
        assert!(write(&path, "1").is_err() && read(&path).is_err());
        std::fs::write(&path, "0\n").unwrap();
        write(&path, "1").unwrap();
        assert_eq!(read(&path).unwrap(), "1\n");
    }
}
