//! Seals: files that no holder of a descriptor can change, for memory shared with other processes.

use std::fs::File;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, SealFlags};
use rustix::io::Errno;

use crate::paths;

const ALL: SealFlags =
    SealFlags::WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::SEAL);

/// The longest wait for a pinned page, which keeps a file from being sealed. The kernel itself waits only
/// 0.15 s (`memfd_wait_for_pins` of mm/memfd.c), which is short if a thread in a page fault lost its
/// processor.
const PATIENCE: Duration = Duration::from_secs(3);

/// Time between two attempts. The kernel refuses some at once.
const BETWEEN: Duration = Duration::from_millis(10);

/// Seals a memfd against all changes. A file that cannot be sealed, such as one on a disk, stays as it is.
///
/// # Errors
/// A process maps it writable, or a transfer pins its pages (EBUSY), for seconds.
pub fn seal(file: &File) -> io::Result<()> {
    if !can_change(file)? {
        return Ok(());
    }
    let until = Instant::now() + PATIENCE;
    loop {
        match rustix::fs::fcntl_add_seals(file, ALL) {
            Err(Errno::BUSY) if Instant::now() < until => thread::sleep(BETWEEN),
            other => return Ok(other?),
        }
    }
}

/// Whether a file supports seals and has none.
///
/// # Errors
/// The host does not tell.
pub fn can_change(file: &File) -> io::Result<bool> {
    match rustix::fs::fcntl_get_seals(file) {
        // A file of a tmpfs has only the seal against seals: it was never meant to be sealed.
        Ok(seals) => Ok(!seals.contains(SealFlags::SEAL)),
        // The file system has no seals.
        Err(Errno::INVAL) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Opens the same file read-only.
///
/// # Errors
/// The host refuses.
pub fn read_only(file: &File) -> io::Result<File> {
    if rustix::fs::fcntl_getfl(file)? & OFlags::RWMODE == OFlags::RDONLY {
        return file.try_clone();
    }
    own_description(file)
}

/// Opens the same file anew for reading: an open file description of its own (open(2)).
///
/// # Errors
/// The host refuses.
pub fn own_description(file: &File) -> io::Result<File> {
    paths::reopen(file, OFlags::RDONLY)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::memory::files::memfd::fresh;

    #[test]
    fn sealed_memory_opens_for_reading_only() {
        let file = fresh(8192).unwrap();
        file.write_all_at(b"before", 0).unwrap();
        assert!(can_change(&file).unwrap());
        let reader = read_only(&file).unwrap();
        assert!(reader.write_at(b"x", 0).is_err(), "that descriptor cannot write");
        seal(&file).unwrap();
        seal(&file).unwrap();
        assert!(!can_change(&reader).unwrap());
        let again = File::options().write(true).open(format!("/proc/self/fd/{}", reader.as_raw_fd()));
        assert!(again.and_then(|file| file.write_at(b"x", 0)).is_err(), "nor one that is opened anew");
        assert!(file.set_len(0).is_err() && file.set_len(1 << 20).is_err());
        let mut found = [0; 6];
        reader.read_exact_at(&mut found, 0).unwrap();
        assert_eq!(&found, b"before");
    }

    #[test]
    fn file_on_a_disk_is_not_sealed() {
        let file = File::open("/proc/self/exe").unwrap();
        seal(&file).unwrap();
        assert!(!can_change(&file).unwrap());
        read_only(&file).unwrap();
    }
}
