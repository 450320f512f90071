//! A raw image file or a block device of the host. Data moves directly between the file and guest memory.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{FallocateFlags, OFlags, fallocate, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, retry_on_intr};

use super::bounce;
use super::bounce::BounceBuffer;
use super::request::DiskRange;
use super::sync_tracker::{PendingSync, SyncTracker};
use crate::config::FileRef;
use crate::devices::virtio::chain::Buffers;
use crate::error::{Error, Invalid, Result};
use crate::holders;
use crate::paths;

/// Pieces of one vectored call at most (`UIO_MAXIOV`).
pub const MAX_PIECES: usize = 1024;
/// Zeros to write if the host has no other way.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
/// `_IO(0x12, 119)` (linux/fs.h)
const BLKDISCARD: libc::Ioctl = 0x1277;
/// The time between two attempts to lock, and their number: one second in all.
const LOCK_RETRY: Duration = Duration::from_millis(5);
const LOCK_ATTEMPTS: u32 = 200;

/// An open file, locked against other users until its last duplicate is dropped.
#[derive(Debug)]
pub struct HostFile {
    file: File,
    name: String,
    is_block_device: bool,
    is_written: bool,
    /// Reads go through memory of the VMM, because the kernel might hold the pages of guest memory.
    needs_bounce: Arc<AtomicBool>,
    syncs: Arc<SyncTracker>,
    /// The file's length at the last look; 0 forces a new look.
    known_len: AtomicU64,
    /// Shared by all duplicates: the last one unlocks the file. `None` for a descriptor of the caller, who
    /// may use the descriptor for several disks.
    lock: Option<Arc<()>>,
}

/// Use of a file, which decides what other processes may do with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Others may read the file, too.
    Read,
    /// No other use is allowed.
    Write,
    /// As [`OpenMode::Write`]; creates the file if it is missing.
    Create,
}

/// The claim of a disk to its image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// No other process may use it in a way that excludes this disk.
    Exclusive,
    /// Others may use it, too.
    Shared,
}

/// Whether another process has the lock.
fn is_held(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES))
}

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the file to guest memory.
    Read,
    /// From guest memory to the file.
    Write,
}

impl HostFile {
    /// Opens and locks a file for the disk `id`.
    ///
    /// # Errors
    /// The file is neither a regular file nor a block device, or its use by another process excludes this
    /// one.
    pub fn open(id: &str, file: &FileRef, wanted: OpenMode) -> Result<Self> {
        Self::open_as(id, file, wanted, Claim::Exclusive)
    }

    /// Opens a file for the disk `id`, and locks it, unless it may be shared and another process uses it.
    ///
    /// # Errors
    /// As [`HostFile::open`], but for another process's use of a file that may be shared.
    pub fn open_as(id: &str, file: &FileRef, wanted: OpenMode, claim: Claim) -> Result<Self> {
        let name = file.to_string();
        let opened = match wanted {
            OpenMode::Read => file.open("open disk")?,
            OpenMode::Write | OpenMode::Create => {
                file.open_writable("open disk", wanted == OpenMode::Create)?
            }
        };
        let kind = opened
            .metadata()
            .map_err(|source| Error::file("read metadata of disk", &name, source))?
            .file_type();
        if !kind.is_file() && !kind.is_block_device() {
            let problem = format!("{id}: {name} is neither a regular file nor a block device");
            return Err(Error::config("disks", problem));
        }
        if !matches!(file, FileRef::Fd(_)) {
            // O_NONBLOCK was for the open only; io_uring would fail requests that have to wait for the disk.
            fcntl_getfl(&opened)
                .and_then(|flags| fcntl_setfl(&opened, flags - OFlags::NONBLOCK))
                .map_err(|source| Error::file("open disk", &name, source))?;
        }
        let needs_bounce = bounce::may_hold_pages(&opened)
            .map_err(|source| Error::file("read metadata of disk", &name, source))?;
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
        match opened.await_lock(kind) {
            Err(source) if is_held(&source) => {
                let act = if wanted == OpenMode::Read { "written" } else { "used" };
                let holder = holders::named(paths::holder_of_lock(&opened.file));
                let conflict = format!("{act} by another VM or process{holder}").into();
                let (disk, image) = (id.to_owned(), opened.name.as_str().into());
                let problem = Invalid::InUse { disk, image, conflict };
                match claim {
                    Claim::Exclusive => return Err(Error::config("disks", problem)),
                    Claim::Shared => log::warn!("disks: {problem}: it is shared, as allowed"),
                }
            }
            done => done.map_err(|source| Error::file("lock disk", &opened.name, source))?,
        }
        Ok(opened)
    }

    /// Duplicates the open file. The duplicates share the lock.
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

    /// Syncs the file with `sync`, unless an earlier sync of the file failed.
    ///
    /// # Errors
    /// This sync failed, or an earlier one did.
    pub fn sync(&self, sync: fn(&File) -> io::Result<()>) -> io::Result<()> {
        let mut under_way = self.syncs.begin()?;
        under_way.end(self.outcome_of_sync(sync(&self.file)))
    }

    /// Returns the result of a sync for which the kernel gave `done`. A read-only file system (erofs,
    /// squashfs) has no sync and needs none.
    pub fn outcome_of_sync(&self, done: io::Result<()>) -> io::Result<()> {
        match done {
            Err(error) if error.kind() == ErrorKind::InvalidInput && !self.is_written => Ok(()),
            done => done,
        }
    }

    /// Begins a sync that the caller executes.
    ///
    /// # Errors
    /// An earlier sync failed.
    pub fn begin_sync(&self) -> io::Result<PendingSync> {
        self.syncs.begin()
    }

    /// Returns the syncs of the file and its duplicates.
    pub fn syncs(&self) -> &SyncTracker {
        &self.syncs
    }

    /// Returns whether transfers must not use guest memory directly. Writes always may: the kernel holds the
    /// pages with the data that it writes, even if their mapping changes.
    pub fn needs_bounce(&self, direction: Direction) -> bool {
        direction == Direction::Read && self.needs_bounce.load(Ordering::Acquire)
    }

    /// Lets reads use guest memory directly: freezing it moves no pages any more.
    pub fn allow_direct(&self) {
        self.needs_bounce.store(false, Ordering::Release);
    }

    /// Returns the name that the user gave.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Adds the name to an error of a disk that has other files, too.
    pub fn named(&self, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("{}: {error}", self.name))
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    pub fn is_block_device(&self) -> bool {
        self.is_block_device
    }

    /// Takes the lock, and waits a moment for a holder. The kernel ends the io_uring of a killed VM after its
    /// process, and with it the last use of the disk's file.
    fn await_lock(&self, kind: libc::c_int) -> io::Result<()> {
        for _ in 0..LOCK_ATTEMPTS {
            match self.set_lock(kind) {
                Err(error) if is_held(&error) => {
                    std::thread::sleep(LOCK_RETRY);
                }
                done => return done,
            }
        }
        self.set_lock(kind)
    }

    /// Takes or releases the lock, which belongs to the open file: two opens of one process exclude each
    /// other, too. Without `F_UNLCK` the lock ends with the last descriptor, which may outlive the disk. A
    /// child has all descriptors of this process between its fork and its exec, and io_uring keeps a file
    /// for a moment after a request has completed.
    fn set_lock(&self, kind: libc::c_int) -> io::Result<()> {
        // SAFETY: the fields are integers; zeros select the whole file.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = kind as libc::c_short;
        lock.l_whence = libc::SEEK_SET as libc::c_short;
        // SAFETY: the kernel reads one `flock`.
        match unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> io::Result<u64> {
        match self.is_block_device {
            true => (&self.file).seek(SeekFrom::End(0)),
            false => Ok(self.file.metadata()?.len()),
        }
    }

    /// Reads into guest memory. Fills all of `into`.
    pub fn read(&self, at: u64, into: &Buffers<'_>) -> io::Result<()> {
        // SAFETY: the pieces are guest memory, borrowed for the call.
        let done = unsafe { self.transfer(Direction::Read, at, &mut into.iovecs()) };
        into.written(into.len()); // after an error, perhaps a part of it
        done
    }

    /// Writes all of `from`, out of guest memory. A file that has become too short does not grow again,
    /// because it would have zeros in place of data.
    pub fn write(&self, at: u64, from: &Buffers<'_>) -> io::Result<()> {
        self.check_len(at + from.len() as u64)?;
        // SAFETY: as above.
        unsafe { self.transfer(Direction::Write, at, &mut from.iovecs()) }
    }

    /// Checks that the file has its first `end` bytes, or had them at the last look.
    pub fn check_len(&self, end: u64) -> io::Result<()> {
        if self.is_block_device || self.known_len.load(Ordering::Relaxed) >= end {
            return Ok(());
        }
        let len = self.len()?;
        self.known_len.store(len, Ordering::Relaxed);
        if len >= end { Ok(()) } else { Err(file_shrunk()) }
    }

    /// Forces a new look at the length before the next write.
    pub fn forget_len(&self) {
        self.known_len.store(0, Ordering::Relaxed);
    }

    /// Transfers all of `pieces`.
    ///
    /// # Safety
    /// The pieces are memory that stays mapped during the call, and that may be read and written.
    pub unsafe fn transfer(
        &self,
        direction: Direction,
        at: u64,
        pieces: &mut [libc::iovec],
    ) -> io::Result<()> {
        if self.needs_bounce(direction) {
            // SAFETY: as the caller promises.
            return unsafe { self.read_by_bounce(at, pieces) };
        }
        let (fd, mut rest) = (self.file.as_raw_fd(), pieces);
        let mut at = libc::off_t::try_from(at).map_err(|_| ErrorKind::FileTooLarge)?;
        while !rest.is_empty() {
            let (pieces, count) = (rest.as_ptr(), rest.len().min(MAX_PIECES) as libc::c_int);
            let done = match direction {
                // SAFETY: as the caller promises.
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

    /// Reads through memory of the VMM.
    ///
    /// # Safety
    /// As for [`HostFile::transfer`].
    unsafe fn read_by_bounce(&self, at: u64, pieces: &[libc::iovec]) -> io::Result<()> {
        let len: usize = pieces.iter().map(|piece| piece.iov_len).sum();
        let mut bounce = BounceBuffer::new(len.min(bounce::MAX_TRANSFER));
        let mut done = 0;
        while done < len {
            let bytes = &mut bounce.bytes()[..(len - done).min(bounce::MAX_TRANSFER)];
            self.file.read_exact_at(bytes, at + done as u64).map_err(|error| match error.kind() {
                ErrorKind::UnexpectedEof => file_shrunk(),
                _ => error,
            })?;
            // SAFETY: as the caller promises; the pieces have `len` bytes.
            unsafe { bounce::scatter(bytes, pieces, done) };
            done += bytes.len();
        }
        Ok(())
    }

    /// Makes a range read as zeros, in the first way that the host supports.
    pub fn write_zeroes(&self, range: DiskRange) -> io::Result<()> {
        let DiskRange { at, len, unmap } = range;
        self.check_len(at + len)?;
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let zero = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        for mode in [punch, zero].into_iter().skip(usize::from(!unmap)) {
            match retry_on_intr(|| fallocate(&self.file, mode, at, len)) {
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

    /// Frees the space of a range on the host.
    pub fn discard(&self, DiskRange { at, len, unmap: _ }: DiskRange) -> io::Result<()> {
        if !self.is_block_device {
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            return Ok(retry_on_intr(|| fallocate(&self.file, punch, at, len))?);
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
            let _ = self.set_lock(libc::F_UNLCK); // a failed unlock ends with the last descriptor
        }
    }
}

pub fn file_shrunk() -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, "the file has shrunk")
}

/// Returns the part of `pieces` after `done` bytes.
pub fn advance(pieces: &mut [libc::iovec], mut done: usize) -> &mut [libc::iovec] {
    let mut whole = 0;
    while let Some(piece) = pieces.get_mut(whole) {
        if done < piece.iov_len {
            // SAFETY: the address stays within the piece.
            piece.iov_base = unsafe { piece.iov_base.byte_add(done) };
            piece.iov_len -= done;
            break;
        }
        done -= piece.iov_len;
        whole += 1;
    }
    &mut pieces[whole..]
}
