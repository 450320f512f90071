//! System calls of a child that wait for the test's answer (seccomp_unotify(2)).
//!
//! ```text
//! child: install ──> listener ──send, SCM_RIGHTS──> test: receive, then next ──> answer, for each call
//! ```
#![allow(unsafe_code)]

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

/// `_IOWR('!', 0, struct seccomp_notif)`, and the same of number 1 for `struct seccomp_notif_resp`.
const RECEIVE: libc::Ioctl = 0xc050_2100_u32.cast_signed();
const ANSWER: libc::Ioctl = 0xc018_2101_u32.cast_signed();
const _: () =
    assert!(size_of::<libc::seccomp_notif>() == 0x50 && size_of::<libc::seccomp_notif_resp>() == 0x18);

/// The test's answer to a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    /// The kernel executes the call.
    Continue,
    /// The call returns this value.
    Value(i64),
    /// The call fails with this error.
    Error(i32),
}

/// Installs the filter in the calling process. Returns the descriptor that reports its calls.
pub(crate) fn install(program: &[libc::sock_filter]) -> io::Result<OwnedFd> {
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    let (mode, flags) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER);
    // SAFETY: the first call takes numbers only. The second reads the statements in `program` and returns a
    // new descriptor.
    unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 {
            return Err(io::Error::last_os_error());
        }
        match libc::syscall(libc::SYS_seccomp, mode, flags, &raw const filter) {
            -1 => Err(io::Error::last_os_error()),
            listener => Ok(OwnedFd::from_raw_fd(listener as i32)),
        }
    }
}

/// Sends the listener to the test.
pub(crate) fn send(far: BorrowedFd<'_>, listener: BorrowedFd<'_>) -> io::Result<()> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut room);
    let fds = [listener];
    beside.push(SendAncillaryMessage::ScmRights(&fds));
    rustix::net::sendmsg(far, &[IoSlice::new(&[0])], &mut beside, SendFlags::empty())?;
    Ok(())
}

/// Returns the listener, or none if the command was never started.
pub(crate) fn receive(near: &UnixStream) -> Option<OwnedFd> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = RecvAncillaryBuffer::new(&mut room);
    let (mut byte, flags) = ([0], RecvFlags::CMSG_CLOEXEC);
    rustix::net::recvmsg(near, &mut [IoSliceMut::new(&mut byte)], &mut beside, flags).ok()?;
    beside.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    })
}

/// Waits for the next call. Returns none if the calling thread was killed meanwhile, and an error when all
/// processes with the filter are gone.
pub(crate) fn next(listener: &OwnedFd) -> io::Result<Option<libc::seccomp_notif>> {
    let mut polled = [PollFd::new(listener, PollFlags::IN)];
    match poll(&mut polled, None) {
        Err(rustix::io::Errno::INTR) => return Ok(None),
        polled => polled?,
    };
    if !polled[0].revents().contains(PollFlags::IN) {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    // SAFETY: zeros are valid for these integers, and the kernel requires them.
    let mut call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills one structure.
    let received = unsafe { libc::ioctl(listener.as_raw_fd(), RECEIVE, &raw mut call) } == 0;
    Ok(received.then_some(call))
}

/// Answers a call. The kernel refuses the answer if the thread is gone, which does no harm.
pub(crate) fn answer(listener: &OwnedFd, call: &libc::seccomp_notif, answer: Answer) {
    let (val, error, flags) = match answer {
        Answer::Continue => (0, 0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32),
        Answer::Value(value) => (value, 0, 0),
        Answer::Error(errno) => (0, -errno, 0),
    };
    let mut answer = libc::seccomp_notif_resp { id: call.id, val, error, flags };
    // SAFETY: the kernel reads one structure.
    unsafe { libc::ioctl(listener.as_raw_fd(), ANSWER, &raw mut answer) };
}
