//! Content of files: extents, without the holes between them.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{SeekFrom, ftruncate, seek};
use rustix::io::{Errno, pread, pwrite};

use super::header::{EXTENTS, Header, failed, unread};

const BUFFER: usize = 64 << 10;

/// Finds the parts of a file that are no holes.
pub(super) fn extents(file: BorrowedFd<'_>, size: u64) -> io::Result<Vec<(u64, u64)>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < size {
        let begin = match seek(file, SeekFrom::Data(at)) {
            Ok(begin) if begin < size => begin,
            // The rest is a hole, or somebody cut the file.
            Ok(_) | Err(Errno::NXIO) => break,
            // The file system knows no holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            Err(error) => return Err(error.into()),
        };
        let end = match seek(file, SeekFrom::Hole(begin)) {
            Ok(end) if end > begin && found.len() + 1 < EXTENTS => end.min(size),
            _ => size,
        };
        found.push((begin, end - begin));
        at = end;
    }
    Ok(found)
}

/// Sends the extents of a file. Returns false if the file became shorter: zeros stand for what it lost.
pub(super) fn send(file: BorrowedFd<'_>, header: &Header, output: &mut dyn Write) -> io::Result<bool> {
    let mut buffer = vec![0; BUFFER];
    let mut is_whole = true;
    for &(mut offset, mut left) in &header.extents {
        while left > 0 {
            let wanted = left.min(BUFFER as u64) as usize;
            let read = match pread(file, &mut buffer[..wanted], offset) {
                Ok(0) => {
                    is_whole = false;
                    buffer[..wanted].fill(0);
                    wanted
                }
                Ok(read) => read,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(failed("read", &header.path.0, error)),
            };
            output.write_all(&buffer[..read])?;
            offset += read as u64;
            left -= read as u64;
        }
    }
    Ok(is_whole)
}

/// Receives the extents of a new file.
pub(super) fn receive(file: impl AsFd, header: &Header, input: &mut dyn Read) -> io::Result<()> {
    let path = &header.path.0;
    ftruncate(&file, header.size).map_err(|error| failed("write", path, error))?;
    let mut buffer = vec![0; BUFFER];
    for &(mut offset, mut left) in &header.extents {
        while left > 0 {
            let wanted = left.min(BUFFER as u64) as usize;
            input
                .read_exact(&mut buffer[..wanted])
                .map_err(|error| unread(error, &format!("in the content of {}", header.path)))?;
            write_at(file.as_fd(), &buffer[..wanted], offset)
                .map_err(|error| failed("write", path, error))?;
            offset += wanted as u64;
            left -= wanted as u64;
        }
    }
    Ok(())
}

fn write_at(file: BorrowedFd<'_>, mut bytes: &[u8], mut offset: u64) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        match pwrite(file, bytes, offset) {
            Ok(written) => {
                bytes = &bytes[written..];
                offset += written as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
