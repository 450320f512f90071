//! A raw image file or a block device of the host. Data goes straight between it and guest memory.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, OFlags, fallocate, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use super::bounce;
use super::bounce::BounceBuffer;
use super::request::DiskRange;
use super::sync_tracker::{PendingSync, SyncTracker};
use crate::config::FileRef;
use crate::devices::virtio::chain::Buffers;
use crate::error::{Error, Result};

/// The most pieces of one vectored call (`UIO_MAXIOV`).
pub const MAX_PIECES: usize = 1024;
/// Zeros for a host that can only write them.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
/// `_IO(0x12, 119)` (linux/fs.h)
const BLKDISCARD: libc::Ioctl = 0x1277;

/// An open file, locked against others until its last duplicate is dropped.
#[derive(Debug)]
pub struct HostFile {
    file: File,
    name: String,
    is_block_device: bool,
    is_written: bool,
    /// Reads go through memory of the VMM's own, because the kernel might hold the pages of guest memory.
    needs_bounce: Arc<AtomicBool>,
    syncs: Arc<SyncTracker>,
    /// Bytes that it had when that was last looked at; 0 to look again.
    known_len: AtomicU64,
    /// One for all duplicates: the last of them unlocks the file. `None` for a descriptor of the caller's,
    /// who may give it to several disks.
    lock: Option<Arc<()>>,
}

/// How a file is to be used, and what others may then do with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Others may read it too.
    Read,
    /// Nobody else.
    Write,
    /// As [`OpenMode::Write`], and if it is not there it is made.
    Create,
}

/// Which way data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To guest memory.
    Read,
    /// From it.
    Write,
}

impl HostFile {
    /// Opens and locks a file for the disk `id`.
    ///
    /// # Errors
    /// It is neither a regular file nor a block device, or someone uses it in a way that does not go with this one.
    pub fn open(id: &str, file: &FileRef, wanted: OpenMode) -> Result<Self> {
        let name = file.to_string();
        let opened = match wanted {
            OpenMode::Read => file.open("open disk")?,
            OpenMode::Write | OpenMode::Create => {
                file.open_writable("open disk", wanted == OpenMode::Create)?
            }
        };
        let kind =
            opened.metadata().map_err(|source| Error::file("look at disk", &name, source))?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            let problem = format!("{id}: {name} is neither a regular file nor a block device");
            return Err(Error::config("disks", problem));
        }
        if !matches!(file, FileRef::Fd(_)) {
            // It was only for the opening; io_uring would take it to mean that nothing may wait for the disk.
            fcntl_getfl(&opened)
                .and_then(|flags| fcntl_setfl(&opened, flags - OFlags::NONBLOCK))
                .map_err(|source| Error::file("open disk", &name, source))?;
        }
        let needs_bounce =
            bounce::may_hold_pages(&opened).map_err(|source| Error::file("look at disk", &name, source))?;
        let opened = Self {
            file: opened,
            name,
            is_block_device: kind.is_block_device(),
            is_written: wanted != OpenMode::Read,
            needs_bounce: Arc::new(AtomicBool::new(needs_bounce)),
            syncs: Arc::default(),
            known_len: AtomicU64::new(0),
            lock: (!matches!(file, FileRef::Fd(_))).then(Arc::default),
        };
        let kind = if wanted == OpenMode::Read { libc::F_RDLCK } else { libc::F_WRLCK };
        opened.set_lock(kind).map_err(|source| match source.raw_os_error() {
            Some(libc::EAGAIN | libc::EACCES) => {
                let use_of_it = if wanted == OpenMode::Read { "written" } else { "used" };
                let problem = format!("{id}: {} is being {use_of_it} by another VM or process", opened.name);
                Error::config("disks", problem)
            }
            _ => Error::file("lock disk", &opened.name, source),
        })?;
        Ok(opened)
    }

    /// The same open file once more; the lock is theirs together.
    pub fn duplicate(&self) -> io::Result<Self> {
        let Self { file, name, is_block_device, is_written, needs_bounce, syncs, known_len: _, lock } = self;
        Ok(Self {
            file: file.try_clone()?,
            name: name.clone(),
            is_block_device: *is_block_device,
            is_written: *is_written,
            needs_bounce: Arc::clone(needs_bounce),
            syncs: Arc::clone(syncs),
            known_len: AtomicU64::new(0),
            lock: lock.clone(),
        })
    }

    /// Syncs the file with `sync`, unless an earlier sync of it failed.
    ///
    /// # Errors
    /// The host cannot write it back, or could not write back what was written before.
    pub fn sync(&self, sync: fn(&File) -> io::Result<()>) -> io::Result<()> {
        let mut under_way = self.syncs.begin()?;
        under_way.end(self.outcome_of_sync(sync(&self.file)))
    }

    /// The result of a sync for which the kernel gave `done`. A file system that is only read (erofs,
    /// squashfs) knows no sync, and needs none.
    pub fn outcome_of_sync(&self, done: io::Result<()>) -> io::Result<()> {
        match done {
            Err(error) if error.kind() == ErrorKind::InvalidInput && !self.is_written => Ok(()),
            done => done,
        }
    }

    /// Begins a sync that somebody else does.
    ///
    /// # Errors
    /// An earlier one failed.
    pub fn begin_sync(&self) -> io::Result<PendingSync> {
        self.syncs.begin()
    }

    /// The syncs of the file and its duplicates.
    pub fn syncs(&self) -> &SyncTracker {
        &self.syncs
    }

    /// Whether transfers must not go to or from guest memory directly. A write may always: what it writes is
    /// in the pages that the kernel holds, whatever becomes of their mapping.
    pub fn needs_bounce(&self, direction: Direction) -> bool {
        direction == Direction::Read && self.needs_bounce.load(Ordering::Acquire)
    }

    /// Lets reads go to guest memory directly: freezing it moves none of its pages any more.
    pub fn allow_direct(&self) {
        self.needs_bounce.store(false, Ordering::Release);
    }

    /// The file as the user named it.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    pub fn is_block_device(&self) -> bool {
        self.is_block_device
    }

    /// Takes or gives up the lock, which belongs to the open file: two that were opened apart exclude each
    /// other in one process, too. Without `F_UNLCK` it ends with the last descriptor, and that may outlive
    /// the disk: a child has all descriptors of this process between its fork and its exec, and io_uring
    /// keeps a file for a moment after it has completed a request.
    fn set_lock(&self, kind: libc::c_int) -> io::Result<()> {
        // SAFETY: integers, for which zeros are the whole file.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = kind as libc::c_short;
        lock.l_whence = libc::SEEK_SET as libc::c_short;
        // SAFETY: the kernel reads one `flock`.
        match unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// Bytes.
    pub fn len(&self) -> io::Result<u64> {
        match self.is_block_device {
            true => (&self.file).seek(SeekFrom::End(0)),
            false => Ok(self.file.metadata()?.len()),
        }
    }

    /// Reads to guest memory, all of it or it is an error.
    pub fn read(&self, at: u64, into: &Buffers<'_>) -> io::Result<()> {
        // SAFETY: the pieces are guest memory, borrowed for the call.
        let done = unsafe { self.transfer(Direction::Read, at, &mut into.iovecs()) };
        into.written(into.len()); // a part of it perhaps, if that was an error
        done
    }

    /// Writes from guest memory, all of it or it is an error. A file that has become too short does not grow again: it would
    /// have zeros where there was data.
    pub fn write(&self, at: u64, from: &Buffers<'_>) -> io::Result<()> {
        self.check_len(at + from.len() as u64)?;
        // SAFETY: as above.
        unsafe { self.transfer(Direction::Write, at, &mut from.iovecs()) }
    }

    /// Whether the file still has its first `end` bytes, or had them when that was last looked at.
    pub fn check_len(&self, end: u64) -> io::Result<()> {
        if self.is_block_device || self.known_len.load(Ordering::Relaxed) >= end {
            return Ok(());
        }
        let len = self.len()?;
        self.known_len.store(len, Ordering::Relaxed);
        if len >= end { Ok(()) } else { Err(file_shrunk()) }
    }

    /// Its length is to be looked at again before the next write.
    pub fn forget_len(&self) {
        self.known_len.store(0, Ordering::Relaxed);
    }

    /// Reads or writes all of `pieces` or it is an error.
    ///
    /// # Safety
    /// They are memory that stays where it is during the call, and that may be read and written.
    pub unsafe fn transfer(
        &self,
        direction: Direction,
        at: u64,
        pieces: &mut [libc::iovec],
    ) -> io::Result<()> {
        if self.needs_bounce(direction) {
            // SAFETY: as the caller has it.
            return unsafe { self.read_by_bounce(at, pieces) };
        }
        let (fd, mut rest) = (self.file.as_raw_fd(), pieces);
        let mut at = libc::off_t::try_from(at).map_err(|_| ErrorKind::FileTooLarge)?;
        while !rest.is_empty() {
            let (pieces, count) = (rest.as_ptr(), rest.len().min(MAX_PIECES) as libc::c_int);
            let done = match direction {
                // SAFETY: as the caller has it.
                Direction::Read => unsafe { libc::preadv(fd, pieces, count, at) },
                // SAFETY: as above.
                Direction::Write => unsafe { libc::pwritev(fd, pieces, count, at) },
            };
            match done {
                0 => return Err(file_shrunk()),
                1.. => {
                    at += done as libc::off_t;
                    rest = advance(rest, done.cast_unsigned());
                }
                _ => match io::Error::last_os_error() {
                    error if error.kind() == ErrorKind::Interrupted => {}
                    error => return Err(error),
                },
            }
        }
        Ok(())
    }

    /// Reads through memory of the VMM's own.
    ///
    /// # Safety
    /// As for [`HostFile::transfer`].
    unsafe fn read_by_bounce(&self, at: u64, pieces: &[libc::iovec]) -> io::Result<()> {
        let len: usize = pieces.iter().map(|piece| piece.iov_len).sum();
        let mut bounce = BounceBuffer::new(len.min(bounce::MOST));
        let mut done = 0;
        while done < len {
            let bytes = &mut bounce.bytes()[..(len - done).min(bounce::MOST)];
            self.file.read_exact_at(bytes, at + done as u64).map_err(|error| match error.kind() {
                ErrorKind::UnexpectedEof => file_shrunk(),
                _ => error,
            })?;
            // SAFETY: as the caller has it; there are `len` bytes.
            unsafe { bounce::scatter(bytes, pieces, done) };
            done += bytes.len();
        }
        Ok(())
    }

    /// Lets a stretch read as zeros, in whichever way the host knows.
    pub fn write_zeroes(&self, stretch: DiskRange) -> io::Result<()> {
        let DiskRange { at, len, unmap } = stretch;
        self.check_len(at + len)?;
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let zero = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        for way in [punch, zero].into_iter().skip(usize::from(!unmap)) {
            match fallocate(&self.file, way, at, len) {
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
                done => return Ok(done?),
            }
        }
        let mut done = 0;
        while done < len {
            let some = (len - done).min(ZEROS.len() as u64);
            self.file.write_all_at(&ZEROS[..some as usize], at + done)?;
            done += some;
        }
        Ok(())
    }

    /// Gives the place of a stretch back to the host.
    pub fn discard(&self, DiskRange { at, len, unmap: _ }: DiskRange) -> io::Result<()> {
        if !self.is_block_device {
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            return Ok(fallocate(&self.file, punch, at, len)?);
        }
        let range = [at, len];
        // SAFETY: the kernel reads two numbers.
        match unsafe { libc::ioctl(self.file.as_raw_fd(), BLKDISCARD, range.as_ptr()) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }
}

impl Drop for HostFile {
    fn drop(&mut self) {
        if self.lock.take().is_some_and(|lock| Arc::into_inner(lock).is_some()) {
            let _ = self.set_lock(libc::F_UNLCK); // if not now, then with the last descriptor
        }
    }
}

pub fn file_shrunk() -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, "the file has become shorter")
}

/// What is left of `pieces` after `done` bytes.
pub fn advance(pieces: &mut [libc::iovec], mut done: usize) -> &mut [libc::iovec] {
    let mut whole = 0;
    while let Some(piece) = pieces.get_mut(whole) {
        if done < piece.iov_len {
            // SAFETY: still within the piece.
            piece.iov_base = unsafe { piece.iov_base.byte_add(done) };
            piece.iov_len -= done;
            break;
        }
        done -= piece.iov_len;
        whole += 1;
    }
    &mut pieces[whole..]
}
