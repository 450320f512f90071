//! Copies files with their holes, by shared blocks if the file system can: disk layers and snapshots.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate};
use rustix::io::{Errno, retry_on_intr};

/// Bytes copied at once.
const STEP: usize = 1 << 20;
/// Bytes read and written at once. The heap would map a larger buffer anew for each step, and its page faults
/// add a third to the time of a copy.
const BUFFER: usize = 64 << 10;

/// Makes an empty file a reflink copy of another. Returns whether the file system can.
pub fn share(from: &File, to: &File) -> bool {
    rustix::fs::ioctl_ficlone(to, from).is_ok()
}

/// Copies a file to an empty one. Returns the number of bytes copied.
pub fn whole(from: &File, to: &File) -> io::Result<u64> {
    whole_while(from, to, |_| true)
}

/// As [`whole`]. `goes_on` gets the number of bytes of each step, and returns false to leave the rest.
pub fn whole_while(from: &File, to: &File, goes_on: impl Fn(u64) -> bool) -> io::Result<u64> {
    if share(from, to) {
        return Ok(0);
    }
    let len = from.metadata()?.len();
    to.set_len(len)?;
    data_while(from, to, 0..len, goes_on)
}

/// As [`data`], with `goes_on` as for [`whole_while`].
pub fn data_while(from: &File, to: &File, at: Range<u64>, goes_on: impl Fn(u64) -> bool) -> io::Result<u64> {
    let mut copied = 0;
    let mut is_on = true;
    each_with_data(from, at, |found| {
        for start in found.clone().step_by(STEP) {
            let end = found.end.min(start + STEP as u64);
            if is_on {
                bytes(from, to, start..end)?;
                copied += end - start;
                is_on = goes_on(end - start);
            }
        }
        Ok(())
    })?;
    Ok(copied)
}

/// Number of bytes of data in a range of a file.
pub fn data_len(file: &File, at: Range<u64>) -> io::Result<u64> {
    let mut found = 0;
    each_with_data(file, at, |data| {
        found += data.end - data.start;
        Ok(())
    })?;
    Ok(found)
}

/// Copies a range of a file to the same range of another. Returns the number of bytes copied.
pub fn stretch(from: &File, to: &File, at: Range<u64>) -> io::Result<u64> {
    if !punch(to, &at)? {
        bytes(from, to, at.clone())?;
        return Ok(at.end - at.start);
    }
    data(from, to, at)
}

/// Whether the file system of this file can punch holes.
pub fn punches(file: &File) -> io::Result<bool> {
    // A hole beyond the end changes nothing.
    let end = file.metadata()?.len();
    punch(file, &(end..end + STEP as u64))
}

/// Punches a hole. Returns whether the file system can.
fn punch(file: &File, at: &Range<u64>) -> io::Result<bool> {
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match retry_on_intr(|| fallocate(file, punch, at.start, at.end - at.start)) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Copies the data of a range to a file with holes there. Returns the number of bytes copied.
fn data(from: &File, to: &File, at: Range<u64>) -> io::Result<u64> {
    let mut copied = 0;
    each_with_data(from, at, |found| {
        copied += found.end - found.start;
        bytes(from, to, found)
    })?;
    Ok(copied)
}

/// Calls `act` for each range of data, in order.
pub fn each_with_data(
    file: &File,
    Range { start, end }: Range<u64>,
    mut act: impl FnMut(Range<u64>) -> io::Result<()>,
) -> io::Result<()> {
    let mut done = start;
    while done < end {
        let at = next_data(file, done..end)?;
        if at == end {
            break;
        }
        done = rustix::fs::seek(file, SeekFrom::Hole(at))?.min(end);
        act(at..done)?;
    }
    Ok(())
}

/// Offset of the first data in a range, or its end.
pub fn next_data(file: &File, Range { start, end }: Range<u64>) -> io::Result<u64> {
    match rustix::fs::seek(file, SeekFrom::Data(start)) {
        Ok(at) => Ok(at.min(end)),
        Err(Errno::NXIO) => Ok(end),
        Err(errno) => Err(errno.into()),
    }
}

/// Copies through the file system, which may share blocks, and by reading and writing if it cannot.
fn bytes(from: &File, to: &File, Range { start, end }: Range<u64>) -> io::Result<()> {
    let (mut read, mut written) = (start, start);
    while read < end {
        let left = (end - read) as usize;
        let mut copy = || rustix::fs::copy_file_range(from, Some(&mut read), to, Some(&mut written), left);
        match retry_on_intr(&mut copy) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => break,
            Err(errno) => return Err(errno.into()),
        }
    }
    let mut buffer = vec![0; ((end - read) as usize).min(BUFFER)];
    while read < end {
        let step = &mut buffer[..((end - read) as usize).min(BUFFER)];
        from.read_exact_at(step, read)?;
        to.write_all_at(step, read)?;
        read += step.len() as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::testing::{apart, refuse_calls};

    /// Tests on a file system without reflinks, so that every path runs.
    fn files() -> [File; 2] {
        ["from", "to"]
            .map(|name| rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).unwrap().into())
    }

    #[test]
    fn copy_has_the_data_and_the_holes() {
        let [from, to] = files();
        from.set_len(64 << 20).unwrap();
        from.write_all_at(b"near the start", 8192).unwrap();
        from.write_all_at(&[9; 3 << 20], 30 << 20).unwrap();
        whole(&from, &to).unwrap();
        let mut found = vec![0; 3 << 20];
        to.read_exact_at(&mut found, 30 << 20).unwrap();
        assert!(found.iter().all(|byte| *byte == 9));
        to.read_exact_at(&mut found[..14], 8192).unwrap();
        assert_eq!(&found[..14], b"near the start");
        let blocks = |file: &File| file.metadata().unwrap().blocks();
        assert_eq!(to.metadata().unwrap().len(), 64 << 20);
        assert!(blocks(&to) <= blocks(&from) + 64, "{} {}", blocks(&to), blocks(&from));
    }

    #[test]
    fn copied_range_includes_its_holes_and_nothing_else() {
        takes_a_stretch_along();
    }

    #[test]
    fn range_is_copied_if_no_hole_can_be_punched() {
        apart(|| {
            refuse_calls(&[libc::SYS_fallocate], libc::EOPNOTSUPP);
            assert!(!punches(&files()[0]).unwrap());
            takes_a_stretch_along();
        });
    }

    fn takes_a_stretch_along() {
        let [from, to] = files();
        from.set_len(4 << 20).unwrap();
        from.write_all_at(&[1; 4096], 2 << 20).unwrap();
        from.write_all_at(&[1; 4096], 3 << 20).unwrap();
        to.write_all_at(&[2; 4 << 20], 0).unwrap();
        stretch(&from, &to, 1 << 20..3 << 20).unwrap();
        let mut expected = vec![2; 4 << 20];
        expected[1 << 20..3 << 20].fill(0);
        expected[2 << 20..][..4096].fill(1);
        let mut found = vec![0; 4 << 20];
        to.read_exact_at(&mut found, 0).unwrap();
        assert!(found == expected);
    }
}
