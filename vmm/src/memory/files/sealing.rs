//! Files that never change any more, whoever has a descriptor of them: memory that is shared with other processes.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, SealFlags};
use rustix::io::Errno;

const ALL: SealFlags =
    SealFlags::WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::SEAL);

/// A page that somebody holds keeps a file from being sealed, and the kernel itself waits no longer than 0.15 s for it to be let go
/// (`memfd_wait_for_pins` of mm/memfd.c). That is not long where a thread that is amidst a page fault has lost its processor to others.
const PATIENCE: Duration = Duration::from_secs(3);

/// Between two attempts, of which the kernel refuses some at once.
const BETWEEN: Duration = Duration::from_millis(10);

/// Sees to it that nobody changes a memfd any more. A file that cannot be sealed, such as one on a disk, stays as it is.
///
/// # Errors
/// Somebody has it mapped to write to it, or has a transfer to it under way (EBUSY), and goes on for seconds.
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

/// Whether a file could be sealed and is not.
///
/// # Errors
/// The host does not tell.
pub fn can_change(file: &File) -> io::Result<bool> {
    match rustix::fs::fcntl_get_seals(file) {
        // Sealed against seals alone is a file of a tmpfs: not one that was meant to be sealed.
        Ok(seals) => Ok(!seals.contains(SealFlags::SEAL)),
        // A file system without seals.
        Err(Errno::INVAL) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// The same file, through a descriptor that cannot be written to.
///
/// # Errors
/// The host refuses.
pub fn read_only(file: &File) -> io::Result<File> {
    if rustix::fs::fcntl_getfl(file)? & OFlags::RWMODE == OFlags::RDONLY {
        return file.try_clone();
    }
    own_description(file)
}

/// The same file opened once more, to be read: an open file description that nobody shares (open(2)).
///
/// # Errors
/// The host refuses.
pub fn own_description(file: &File) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::memory::files::memfd::fresh;

    #[test]
    fn what_is_sealed_is_only_read_whoever_opens_it() {
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
    fn a_file_of_a_disk_is_left_as_it_is() {
        let file = File::open("/proc/self/exe").unwrap();
        seal(&file).unwrap();
        assert!(!can_change(&file).unwrap());
        read_only(&file).unwrap();
    }
}
