//! Copies content without its holes.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use rustix::io::Errno;

/// Copies the first `size` bytes of a file to an offset of another. Returns false if the file has become
/// shorter.
pub(super) fn copy(mut from: &File, mut to: &File, at: u64, size: u64) -> io::Result<bool> {
    let mut done = 0;
    while done < size {
        let start = match rustix::fs::seek(from, rustix::fs::SeekFrom::Data(done)) {
            Ok(start) if start < size => start,
            // A hole reaches to the end.
            Ok(_) | Err(Errno::NXIO) => break,
            // The file system knows no holes.
            Err(Errno::INVAL) => done,
            Err(errno) => return Err(errno.into()),
        };
        let end = match rustix::fs::seek(from, rustix::fs::SeekFrom::Hole(start)) {
            Ok(end) => end.min(size),
            Err(Errno::INVAL | Errno::NXIO) => size,
            Err(errno) => return Err(errno.into()),
        };
        from.seek(SeekFrom::Start(start))?;
        to.seek(SeekFrom::Start(at + start))?;
        // The kernel copies, or shares the blocks.
        if io::copy(&mut from.take(end - start), &mut to)? < end - start {
            return Ok(false);
        }
        done = end;
    }
    Ok(from.metadata()?.len() >= size)
}
