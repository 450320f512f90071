//! userfaultfd: page faults in a range of memory become messages, and the reader of the messages fills the
//! pages (Documentation/admin-guide/mm/userfaultfd.rst). Only missing mode is used: a fault on a page that is
//! in no page table and no file.
//!
//! The calls and their structures are those of linux/userfaultfd.h. They need no crate.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::{self, Errno};

use crate::error::{Error, Result};
use crate::memory::PAGE;
use crate::paths;

const DEVICE: &str = "/dev/userfaultfd";
const API: u64 = 0xaa;
const FEATURE_EVENT_REMOVE: u64 = 1 << 3;
const FEATURE_MISSING_SHMEM: u64 = 1 << 5;
const MODE_MISSING: u64 = 1;
const DONT_WAKE: u64 = 1;
const EVENT_PAGEFAULT: u8 = 0x12;

/// An ioctl of userfaultfd: `direction` 2 reads, 3 reads and writes.
const fn call<T>(direction: libc::c_ulong, number: libc::c_ulong) -> libc::c_ulong {
    direction << 30 | (size_of::<T>() as libc::c_ulong) << 16 | 0xaa << 8 | number
}

const NEW: libc::c_ulong = 0xaa00;
const UFFDIO_API: libc::c_ulong = call::<Handshake>(3, 0x3f);
const UFFDIO_REGISTER: libc::c_ulong = call::<Register>(3, 0);
const UFFDIO_WAKE: libc::c_ulong = call::<Range>(2, 2);
const UFFDIO_COPY: libc::c_ulong = call::<Copy>(3, 3);
const UFFDIO_ZEROPAGE: libc::c_ulong = call::<RangeIoctl>(3, 4);
const UFFDIO_POISON: libc::c_ulong = call::<RangeIoctl>(3, 8);

#[repr(C)]
struct Handshake {
    api: u64,
    features: u64,
    calls: u64,
}

#[repr(C)]
struct Range {
    start: u64,
    len: u64,
}

#[repr(C)]
struct Register {
    range: Range,
    mode: u64,
    calls: u64,
}

#[repr(C)]
struct Copy {
    to: u64,
    from: u64,
    len: u64,
    mode: u64,
    done: i64,
}

/// `uffdio_zeropage` and `uffdio_poison`.
#[repr(C)]
struct RangeIoctl {
    range: Range,
    mode: u64,
    done: i64,
}

/// `uffd_msg`. Its address is that of a page fault.
#[repr(C)]
#[derive(Clone, Copy)]
struct UffdMessage {
    event: u8,
    reserved: [u8; 7],
    flags: u64,
    address: u64,
    thread: u64,
}

const _: () = assert!(size_of::<Handshake>() == 24 && UFFDIO_API == 0xc018_aa3f);
const _: () = assert!(size_of::<Register>() == 32 && UFFDIO_REGISTER == 0xc020_aa00);
const _: () = assert!(size_of::<Range>() == 16 && UFFDIO_WAKE == 0x8010_aa02);
const _: () = assert!(size_of::<Copy>() == 40 && UFFDIO_COPY == 0xc028_aa03);
const _: () = assert!(size_of::<RangeIoctl>() == 32 && UFFDIO_ZEROPAGE == 0xc020_aa04);
const _: () = assert!(UFFDIO_POISON == 0xc020_aa08);
const _: () = assert!(size_of::<UffdMessage>() == 32);

/// Messages read at once.
const MESSAGES: usize = 16;

/// A userfaultfd of this process, or of another that sent it. Its calls act on the memory of the process that
/// made it.
#[derive(Debug)]
pub struct Userfault {
    fd: OwnedFd,
}

impl Userfault {
    /// Makes one for this process that also serves faults in the kernel, as KVM's are.
    ///
    /// # Errors
    /// The kernel has no userfaultfd, or refuses it to this user.
    pub fn new() -> Result<Self> {
        Self::with(0, "unpack all memory first")
    }

    /// As [`Userfault::new`], and reports ranges that this process drops (`UFFD_EVENT_REMOVE`). A thread that
    /// drops a range waits until the event is read.
    ///
    /// # Errors
    /// As [`Userfault::new`].
    pub fn reporting_drops() -> Result<Self> {
        Self::with(FEATURE_EVENT_REMOVE, "restore from the memory's file")
    }

    /// Makes one with these features. `otherwise` needs no userfaultfd.
    fn with(features: u64, otherwise: &str) -> Result<Self> {
        let fd = from_device().or_else(|_| from_call()).map_err(|errno| {
            let why = format!(
                "handle KVM's page faults: give this user read and write access to /dev/userfaultfd, \
                 CAP_SYS_PTRACE, or vm.unprivileged_userfaultfd=1 (without one of them, a userfaultfd \
                 handles no faults of KVM); or {otherwise}, which needs none of them"
            );
            Error::host(why, errno)
        })?;
        let handshake = agree(&fd, features)
            .map_err(|errno| Error::host("agree on the features of userfaultfd with the kernel", errno))?;
        if handshake.features & FEATURE_MISSING_SHMEM == 0 {
            return Err(Error::host("handle page faults of a memfd", Errno::NOTSUP));
        }
        Ok(Self { fd })
    }

    /// One without an API handshake, which can do nothing.
    #[cfg(test)]
    pub(crate) fn without_agreement() -> io::Result<Self> {
        Ok(Self { fd: from_device().or_else(|_| from_call())? })
    }

    /// One that reports unmapped memory of its process, too.
    #[cfg(test)]
    pub(crate) fn reporting_unmapped_memory() -> io::Result<Self> {
        const FEATURE_EVENT_UNMAP: u64 = 1 << 6;
        let fd = from_device().or_else(|_| from_call())?;
        agree(&fd, FEATURE_EVENT_UNMAP)?;
        Ok(Self { fd })
    }

    /// Takes over one that another process made and initialised.
    #[must_use]
    pub fn of_other(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Registers `len` bytes of memory at `start`: faults on missing pages become messages.
    ///
    /// # Errors
    /// The mapping there does not support it.
    pub fn register(&self, start: u64, len: u64) -> io::Result<()> {
        let mut register = Register { range: Range { start, len }, mode: MODE_MISSING, calls: 0 };
        // SAFETY: the call reads and writes the structure. An unanswered fault blocks, and does no other
        // harm.
        unsafe { ioctl(&self.fd, UFFDIO_REGISTER, &raw mut register) }
    }

    /// Wakes the faults that wait for pages of the range. They fault again if the page is missing.
    ///
    /// # Errors
    /// The range is invalid, or the process is gone.
    pub fn wake(&self, start: u64, len: u64) -> io::Result<()> {
        let mut range = Range { start, len };
        // SAFETY: the call reads the structure.
        unsafe { ioctl(&self.fd, UFFDIO_WAKE, &raw mut range) }
    }

    /// Copies `bytes`, whole pages, to `start`, except over present pages. Wakes nothing.
    ///
    /// # Errors
    /// `NOMEM`: the host has no memory. `NOENT`: the range is not registered as one piece. `SRCH`: the
    /// process is gone.
    pub fn copy(&self, start: u64, bytes: &[u8]) -> io::Result<()> {
        over_what_is_there(bytes.len() as u64, |from, left| {
            let mut copy = Copy {
                to: start + from,
                from: bytes.as_ptr() as u64 + from,
                len: left,
                mode: DONT_WAKE,
                done: 0,
            };
            // SAFETY: the call reads and writes the structure, and reads from `bytes`, which is at least that
            // long.
            let answer = unsafe { ioctl(&self.fd, UFFDIO_COPY, &raw mut copy) };
            (answer, copy.done)
        })
    }

    /// Maps the zero page for missing pages of a range. Wakes nothing.
    ///
    /// # Errors
    /// As [`Userfault::copy`].
    pub fn zero(&self, start: u64, len: u64) -> io::Result<()> {
        self.mark(UFFDIO_ZEROPAGE, start, len)
    }

    /// Poisons missing pages of a range, so that no thread can read them. Wakes nothing.
    ///
    /// # Errors
    /// As [`Userfault::copy`]. `INVAL`: the kernel is older than Linux 6.6.
    pub fn poison(&self, start: u64, len: u64) -> io::Result<()> {
        self.mark(UFFDIO_POISON, start, len)
    }

    fn mark(&self, how: libc::c_ulong, start: u64, len: u64) -> io::Result<()> {
        over_what_is_there(len, |from, left| {
            let range = Range { start: start + from, len: left };
            let mut request = RangeIoctl { range, mode: DONT_WAKE, done: 0 };
            // SAFETY: the call reads and writes the structure. Only pages that are missing change.
            let answer = unsafe { ioctl(&self.fd, how, &raw mut request) };
            (answer, request.done)
        })
    }

    /// Whether a fault or an event waits that was not read.
    #[must_use]
    pub fn has_faults(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok()
            && fds[0].revents().contains(PollFlags::IN)
    }

    /// Whether a thread waits in a fault, also if the fault was read (`userfaultfd_show_fdinfo` of
    /// fs/userfaultfd.c).
    ///
    /// # Errors
    /// The host does not tell.
    pub fn is_waited_for(&self) -> std::io::Result<bool> {
        let info = paths::info_of(&self.fd)?;
        let total = info.lines().find_map(|line| line.strip_prefix("total:"));
        Ok(self.has_faults() || total.is_some_and(|count| count.trim() != "0"))
    }

    /// As [`Userfault::read`], until no more faults come.
    ///
    /// # Errors
    /// As [`Userfault::read`].
    pub fn read_all(&self, mut each: impl FnMut(u64)) -> io::Result<()> {
        while self.read(&mut each)? == MESSAGES {}
        Ok(())
    }

    /// Calls `each` with the addresses of pages for which faults wait. Does not wait for faults. An address
    /// may come more than once, and after its page was filled. Reads events, too. Returns the number of
    /// messages.
    ///
    /// # Errors
    /// The descriptor cannot be read.
    pub fn read(&self, mut each: impl FnMut(u64)) -> io::Result<usize> {
        let nothing = UffdMessage { event: 0, reserved: [0; 7], flags: 0, address: 0, thread: 0 };
        let mut messages = [nothing; MESSAGES];
        let room = size_of_val(&messages);
        // SAFETY: the kernel writes whole messages, as many as the buffer holds at most. Any bytes are a
        // valid `UffdMessage`.
        let read = unsafe { libc::read(self.fd.as_raw_fd(), messages.as_mut_ptr().cast(), room) };
        if read < 0 {
            return match std::io::Error::last_os_error().raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => Ok(0),
                other => Err(Errno::from_raw_os_error(other.unwrap_or(libc::EIO))),
            };
        }
        let count = read.cast_unsigned() / size_of::<UffdMessage>();
        let faults = messages[..count].iter().filter(|message| message.event == EVENT_PAGEFAULT);
        faults.for_each(|fault| each(fault.address));
        Ok(count)
    }
}

impl AsFd for Userfault {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The most attempts of a call while the mapping changes. It changes until an event is read, which the caller
/// may be about to do.
const ATTEMPTS: u32 = 10_000;

/// Calls `act` with the rest of a range until all is done. `act` stops at a present page and returns the
/// number of bytes done before; it goes on behind that page.
fn over_what_is_there(len: u64, mut act: impl FnMut(u64, u64) -> (io::Result<()>, i64)) -> io::Result<()> {
    let (mut at, mut attempts) = (0, 0);
    while at < len {
        let (answer, done) = act(at, len - at);
        match answer {
            Ok(()) => return Ok(()),
            // Cut short by a present page or by a change of the mapping: the call tells how much it did.
            Err(Errno::AGAIN) if done > 0 => at += done.cast_unsigned(),
            Err(Errno::EXIST) => at += PAGE,
            Err(Errno::AGAIN | Errno::INTR) if attempts < ATTEMPTS => {
                attempts += 1;
                std::thread::yield_now();
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Agrees with the kernel on these features.
fn agree(fd: &OwnedFd, features: u64) -> io::Result<Handshake> {
    let mut handshake = Handshake { api: API, features, calls: 0 };
    // SAFETY: the call reads and writes the structure that it is for.
    unsafe { ioctl(fd, UFFDIO_API, &raw mut handshake) }?;
    Ok(handshake)
}

/// Opens through the device file, with its permissions alone.
fn from_device() -> io::Result<OwnedFd> {
    let device = paths::open(DEVICE, OFlags::RDWR, 0)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: the call takes flags, and returns a new descriptor without another owner.
    match unsafe { libc::ioctl(device.as_raw_fd(), NEW as libc::Ioctl, flags) } {
        ..0 => Err(last_error()),
        // SAFETY: as above.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

fn from_call() -> io::Result<OwnedFd> {
    // SAFETY: the call takes flags, and returns a new descriptor without another owner.
    match unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) } {
        ..0 => Err(last_error()),
        // SAFETY: as above.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) }),
    }
}

/// # Safety
/// `argument` is a valid argument of the call.
unsafe fn ioctl<T>(fd: &OwnedFd, call: libc::c_ulong, argument: *mut T) -> io::Result<()> {
    // SAFETY: the caller's promise.
    match unsafe { libc::ioctl(fd.as_raw_fd(), call as libc::Ioctl, argument) } {
        ..0 => Err(last_error()),
        _ => Ok(()),
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
