//! userfaultfd: page faults in a range of memory become messages, and whoever reads them fills the pages
//! (Documentation/admin-guide/mm/userfaultfd.rst). Missing mode alone: a page that is in no page table and in no file.
//!
//! No crate: the four calls that are used here, and their structures of linux/userfaultfd.h.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::memory::PAGE;

type Answer<T> = rustix::io::Result<T>;

const DEVICE: &str = "/dev/userfaultfd";
const API: u64 = 0xaa;
const FEATURE_MISSING_SHMEM: u64 = 1 << 5;
const FEATURE_POISON: u64 = 1 << 14;
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
const UFFDIO_ZEROPAGE: libc::c_ulong = call::<OnRange>(3, 4);
const UFFDIO_POISON: libc::c_ulong = call::<OnRange>(3, 8);

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
struct OnRange {
    range: Range,
    mode: u64,
    done: i64,
}

/// `uffd_msg`, of which only page faults come.
#[repr(C)]
#[derive(Clone, Copy)]
struct Message {
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
const _: () = assert!(size_of::<OnRange>() == 32 && UFFDIO_ZEROPAGE == 0xc020_aa04);
const _: () = assert!(UFFDIO_POISON == 0xc020_aa08);
const _: () = assert!(size_of::<Message>() == 32);

/// Messages read at once.
const MESSAGES: usize = 16;

/// A userfaultfd of this process, or of another that has sent it. The calls work on the memory of whoever made it.
#[derive(Debug)]
pub struct Userfault {
    fd: OwnedFd,
    poisons: bool,
}

impl Userfault {
    /// A new one for this process, which also serves the faults of the kernel: KVM's.
    ///
    /// # Errors
    /// The kernel has none, or not for this user.
    pub fn new() -> Result<Self> {
        let fd = from_device().or_else(|_| from_call()).map_err(|errno| {
            let why = "handle page faults of KVM: that takes read and write access to /dev/userfaultfd, CAP_SYS_PTRACE, or \
                       vm.unprivileged_userfaultfd=1. What everyone may have, a userfaultfd for faults in user mode, does not \
                       serve KVM's; to unpack all memory first needs none of them";
            Error::host(why, errno)
        })?;
        let mut handshake = Handshake { api: API, features: 0, calls: 0 };
        // SAFETY: the call reads and writes the structure that it is for.
        unsafe { ioctl(&fd, UFFDIO_API, &raw mut handshake) }
            .map_err(|errno| Error::host("agree with the kernel about userfaultfd", errno))?;
        if handshake.features & FEATURE_MISSING_SHMEM == 0 {
            return Err(Error::host("handle page faults of a memfd", Errno::NOTSUP));
        }
        Ok(Self { fd, poisons: handshake.features & FEATURE_POISON != 0 })
    }

    /// One that nothing was agreed about, and which can do nothing.
    #[cfg(test)]
    pub(crate) fn without_agreement() -> Answer<Self> {
        Ok(Self { fd: from_device().or_else(|_| from_call())?, poisons: false })
    }

    /// Takes over one that was made, and agreed about, in another process.
    #[must_use]
    pub fn of_other(fd: OwnedFd) -> Self {
        Self { fd, poisons: false }
    }

    /// Whether [`Userfault::poison`] works.
    #[must_use]
    pub fn poisons(&self) -> bool {
        self.poisons
    }

    /// From now on a page that is missing in `len` bytes of memory at `start` makes a message.
    ///
    /// # Errors
    /// Something else is mapped there than what this works on.
    pub fn register(&self, start: u64, len: u64) -> Answer<()> {
        let mut register = Register { range: Range { start, len }, mode: MODE_MISSING, calls: 0 };
        // SAFETY: the call reads and writes the structure. A fault that nobody answers blocks, and does no other harm.
        unsafe { ioctl(&self.fd, UFFDIO_REGISTER, &raw mut register) }
    }

    /// Whoever waits for a page in the range looks again whether it is there.
    ///
    /// # Errors
    /// The range is no range, or the process is gone.
    pub fn wake(&self, start: u64, len: u64) -> Answer<()> {
        let mut range = Range { start, len };
        // SAFETY: the call reads the structure.
        unsafe { ioctl(&self.fd, UFFDIO_WAKE, &raw mut range) }
    }

    /// Puts `bytes`, whole pages, at `start`, but for pages that are there already. Wakes nobody.
    ///
    /// # Errors
    /// `NOMEM`: the host has no memory. `NOENT`: the range is not, or not in one piece, registered. `SRCH`: the process is gone.
    pub fn copy(&self, start: u64, bytes: &[u8]) -> Answer<()> {
        over_what_is_there(bytes.len() as u64, |from, left| {
            let mut copy = Copy {
                to: start + from,
                from: bytes.as_ptr() as u64 + from,
                len: left,
                mode: DONT_WAKE,
                done: 0,
            };
            // SAFETY: the call reads and writes the structure, and reads from `bytes`, which is at least that long.
            let answer = unsafe { ioctl(&self.fd, UFFDIO_COPY, &raw mut copy) };
            (answer, copy.done)
        })
    }

    /// Makes missing pages of a range the zero page. Wakes nobody.
    ///
    /// # Errors
    /// As [`Userfault::copy`].
    pub fn zero(&self, start: u64, len: u64) -> Answer<()> {
        self.mark(UFFDIO_ZEROPAGE, start, len)
    }

    /// Makes missing pages of a range such that nobody can ever read them. Wakes nobody.
    ///
    /// # Errors
    /// As [`Userfault::copy`].
    pub fn poison(&self, start: u64, len: u64) -> Answer<()> {
        self.mark(UFFDIO_POISON, start, len)
    }

    fn mark(&self, how: libc::c_ulong, start: u64, len: u64) -> Answer<()> {
        over_what_is_there(len, |from, left| {
            let range = Range { start: start + from, len: left };
            let mut request = OnRange { range, mode: DONT_WAKE, done: 0 };
            // SAFETY: the call reads and writes the structure. Only pages that are missing change.
            let answer = unsafe { ioctl(&self.fd, how, &raw mut request) };
            (answer, request.done)
        })
    }

    /// Whether there is a fault that has not been read.
    #[must_use]
    pub fn has_faults(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok()
            && fds[0].revents().contains(PollFlags::IN)
    }

    /// As [`Userfault::read`], until no more come.
    ///
    /// # Errors
    /// As [`Userfault::read`].
    pub fn read_all(&self, mut each: impl FnMut(u64)) -> Answer<()> {
        while self.read(&mut each)? == MESSAGES {}
        Ok(())
    }

    /// Addresses of pages that somebody waits for, with `each`. Does not wait for any. An address may come more than once, and after
    /// the page has been filled. Says how many came.
    ///
    /// # Errors
    /// The descriptor is none that can be read.
    pub fn read(&self, mut each: impl FnMut(u64)) -> Answer<usize> {
        let nothing = Message { event: 0, reserved: [0; 7], flags: 0, address: 0, thread: 0 };
        let mut messages = [nothing; MESSAGES];
        let room = size_of_val(&messages);
        // SAFETY: the kernel writes whole messages, any bytes of which are a `Message`, and at most as many as there is room for.
        let read = unsafe { libc::read(self.fd.as_raw_fd(), messages.as_mut_ptr().cast(), room) };
        if read < 0 {
            return match std::io::Error::last_os_error().raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => Ok(0),
                other => Err(Errno::from_raw_os_error(other.unwrap_or(libc::EIO))),
            };
        }
        let count = read.cast_unsigned() / size_of::<Message>();
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

/// Does `act` with the rest of a range until all is done. It stops at a page that is there, says how many bytes it has done before,
/// and goes on behind it.
fn over_what_is_there(len: u64, mut act: impl FnMut(u64, u64) -> (Answer<()>, i64)) -> Answer<()> {
    let mut at = 0;
    while at < len {
        let (answer, done) = act(at, len - at);
        match answer {
            Ok(()) => return Ok(()),
            // Cut short, by a page that is there or by a change of the mapping meanwhile: what has been done is told.
            Err(Errno::AGAIN) if done > 0 => at += done.cast_unsigned(),
            Err(Errno::EXIST) => at += PAGE,
            Err(Errno::AGAIN | Errno::INTR) => std::thread::yield_now(),
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// With whatever rights the device's file has, and without others.
fn from_device() -> Answer<OwnedFd> {
    let device = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: the call takes flags, and gives a new descriptor that nobody else has.
    match unsafe { libc::ioctl(device.as_raw_fd(), NEW as libc::Ioctl, flags) } {
        ..0 => Err(last_error()),
        // SAFETY: as above.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

fn from_call() -> Answer<OwnedFd> {
    // SAFETY: the call takes flags, and gives a new descriptor that nobody else has.
    match unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) } {
        ..0 => Err(last_error()),
        // SAFETY: as above.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) }),
    }
}

/// # Safety
/// `argument` is what the call takes.
unsafe fn ioctl<T>(fd: &OwnedFd, call: libc::c_ulong, argument: *mut T) -> Answer<()> {
    // SAFETY: the caller's promise.
    match unsafe { libc::ioctl(fd.as_raw_fd(), call as libc::Ioctl, argument) } {
        ..0 => Err(last_error()),
        _ => Ok(()),
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
