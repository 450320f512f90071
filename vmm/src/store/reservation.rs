//! Disk space, reserved before the work and released as files take it: a full disk is reported first, not
//! last.
//!
//! The blocks belong to a file without a name until they are released, so no other program and no other
//! snapshot takes them meanwhile. On a file system without `fallocate`, and on tmpfs, which would fill the
//! pages, the reservation only checks the free space.

use std::cell::Cell;
use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate, fstatfs, fstatvfs, ftruncate};
use rustix::io::{Errno, retry_on_intr};

use crate::error::{Error, Result};

/// Bytes released at once, ahead of the writes.
const AHEAD: u64 = 16 << 20;
/// statfs(2).
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// See the module. Dropping it releases the rest.
#[derive(Debug)]
pub struct SpaceReservation {
    /// The snapshot, for errors.
    snapshot: PathBuf,
    file: File,
    /// Whether the file system holds blocks; otherwise only its free space was checked.
    holds: bool,
    /// Bytes reserved.
    left: Cell<u64>,
    /// Bytes released and not written yet.
    released: Cell<u64>,
}

impl SpaceReservation {
    /// Reserves `bytes` for a snapshot, in the file system of an empty file without a name.
    ///
    /// # Errors
    /// ENOSPC or EDQUOT: the file system has fewer, or this user may have fewer.
    pub(super) fn new(snapshot: &Path, file: File, bytes: u64) -> Result<Self> {
        let holds = allocate(&file, 0, bytes).map_err(|errno| failed(snapshot, bytes, errno))?;
        let (snapshot, left) = (snapshot.to_owned(), Cell::new(if holds { bytes } else { 0 }));
        Ok(Self { snapshot, file, holds, left, released: Cell::new(0) })
    }

    /// Reserves `bytes` more.
    ///
    /// # Errors
    /// As [`SpaceReservation::new`].
    pub fn grow(&self, bytes: u64) -> Result<()> {
        let left = self.left.get();
        // A reservation of 0 bytes does not show whether the file system has `fallocate`.
        let allocated = match self.holds {
            true => allocate(&self.file, left, bytes),
            false => check_free(&self.file, bytes).map(|()| false),
        };
        if allocated.map_err(|errno| failed(&self.snapshot, bytes, errno))? {
            self.left.set(left + bytes);
        }
        Ok(())
    }

    /// Releases `bytes`, which the caller writes next.
    pub fn release(&self, bytes: u64) {
        let released = self.released.get();
        if released < bytes && self.left.get() > 0 {
            let more = (bytes - released).max(AHEAD).min(self.left.get());
            self.left.set(self.left.get() - more);
            // If this fails, the blocks are freed at the end, with the file.
            let _ = ftruncate(&self.file, self.left.get());
            self.released.set(released + more);
        }
        self.released.set(self.released.get().saturating_sub(bytes));
    }
}

/// Allocates `bytes` from an offset on. Returns false if the file system holds no blocks, and has the space.
fn allocate(file: &File, at: u64, bytes: u64) -> rustix::io::Result<bool> {
    if fstatfs(file)?.f_type as u64 == TMPFS_MAGIC {
        return check_free(file, bytes).map(|()| false);
    }
    if bytes == 0 {
        return Ok(true);
    }
    match retry_on_intr(|| fallocate(file, FallocateFlags::empty(), at, bytes)) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => check_free(file, bytes).map(|()| false),
        Err(errno) => Err(errno),
    }
}

fn failed(snapshot: &Path, bytes: u64, source: Errno) -> Error {
    let mib = bytes.div_ceil(1 << 20);
    Error::host(format!("reserve {mib} MiB for snapshot {}", snapshot.display()), source)
}

/// A file system with 0 blocks has no limit.
fn check_free(file: &File, bytes: u64) -> rustix::io::Result<()> {
    let found = fstatvfs(file)?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    if found.f_blocks > 0 && free < bytes { Err(Errno::NOSPC) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn reserved(file: File, bytes: u64) -> Result<SpaceReservation> {
        SpaceReservation::new(Path::new("/s"), file, bytes)
    }

    fn nameless(place: &std::path::Path) -> File {
        use rustix::fs::{Mode, OFlags, open};
        open(place, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR).unwrap().into()
    }

    #[test]
    fn room_is_held_and_released_ahead_of_what_is_written() {
        let file = nameless(&std::env::temp_dir());
        let blocks = file.try_clone().unwrap();
        let held = || blocks.metadata().unwrap().blocks() * 512;
        let reservation = reserved(file, 64 << 20).unwrap();
        if reservation.left.get() == 0 {
            return crate::testing::skip("this file system cannot hold room ahead, it is only asked for it");
        }
        assert!(held() >= 64 << 20, "{}", held());
        (0..4).for_each(|_| reservation.release(4 << 20));
        assert!((48 << 20..49 << 20).contains(&held()), "{}", held());
        reservation.release(40 << 20);
        assert!((8 << 20..9 << 20).contains(&held()), "{}", held());
        reservation.release(1 << 30);
        assert_eq!(held(), 0);
        reservation.grow(8 << 20).unwrap();
        assert!((8 << 20..9 << 20).contains(&held()), "{}", held());
    }

    /// A file system without `fallocate` refuses it with an error of its own kind, as sockets and pipes do. A
    /// file of /proc gives the kind of a file system.
    #[test]
    fn reservation_of_nothing_grows_where_fallocate_is_lacking() {
        let without = File::options().write(true).open("/proc/self/comm").unwrap();
        let refused = fallocate(&without, FallocateFlags::empty(), 0, 1);
        assert_eq!(refused, Err(Errno::OPNOTSUPP), "the kernel has fallocate for /proc");
        let reservation = reserved(without, 0).unwrap();
        reservation.grow(1 << 20).unwrap();
        assert_eq!(reservation.left.get(), 0, "nothing is held");
    }

    #[test]
    fn more_than_there_is_cannot_be_reserved() {
        let of_tmpfs = rustix::fs::memfd_create("tmpfs", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        reserved(of_tmpfs.into(), 1 << 60).unwrap(); // the kernel's own tmpfs has no limit
        let free = fstatvfs(nameless(&std::env::temp_dir())).unwrap();
        let more = (free.f_blocks + 1) * free.f_frsize;
        let little = reserved(nameless(&std::env::temp_dir()), 1 << 20).unwrap();
        for error in
            [reserved(nameless(&std::env::temp_dir()), more).unwrap_err(), little.grow(more).unwrap_err()]
        {
            let text = crate::error::report(&error);
            let why = ["No space left", "File too large"];
            assert!(why.iter().any(|why| text.contains(why)) && text.contains("for snapshot /s"), "{text}");
        }
    }
}
