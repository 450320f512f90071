//! Syncs of a child that wait for the test. A seccomp filter reports each sync to the test, and the child's
//! thread waits for the test's answer (seccomp_unotify(2)).
//!
//! ```text
//! HeldSyncs ──apply──> pre_exec: seccomp ──> listener ──SCM_RIGHTS──> the test's thread: lets each go on, unless held
//! ```
#![allow(unsafe_code)]

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

use crate::kvm_shim::{SYNCS, answer_to};
use crate::patience::wait_until;

/// `_IOWR('!', 0, struct seccomp_notif)`, and the same of number 1 for `struct seccomp_notif_resp`.
const RECEIVE: libc::Ioctl = 0xc050_2100_u32.cast_signed();
const ANSWER: libc::Ioctl = 0xc018_2101_u32.cast_signed();
const _: () =
    assert!(size_of::<libc::seccomp_notif>() == 0x50 && size_of::<libc::seccomp_notif_resp>() == 0x18);

/// See the module. On drop all syncs go on.
#[derive(Debug)]
pub struct HeldSyncs {
    far: UnixStream,
    state: Arc<(Mutex<Holding>, Condvar)>,
}

#[derive(Debug, Default)]
struct Holding {
    is_holding: bool,
    held: u32,
}

impl HeldSyncs {
    /// Makes a holder that holds no sync yet.
    ///
    /// # Panics
    /// The host refuses a socket.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "starts a thread")]
    pub fn new() -> Self {
        let (near, far) = UnixStream::pair().expect("make a socket");
        let state = Arc::<(Mutex<Holding>, Condvar)>::default();
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            if let Some(listener) = receive(&near) {
                while pass_on(&listener, &shared).is_ok() {}
            }
        });
        Self { far, state }
    }

    /// Lets the test hold a command's syncs.
    ///
    /// # Panics
    /// The host refuses a descriptor.
    pub fn apply(&self, command: &mut Command) {
        let far = self.far.try_clone().expect("duplicate a socket");
        let program = answer_to(&SYNCS, libc::SECCOMP_RET_USER_NOTIF);
        // SAFETY: between fork and exec only system calls are made, on a program that exists already.
        unsafe { command.pre_exec(move || send(&far, install(&program)?.as_fd())) };
    }

    /// Holds each sync that begins from now on.
    pub fn hold(&self) {
        self.lock().is_holding = true;
    }

    /// Waits until a sync is held.
    ///
    /// # Panics
    /// No sync is held in time.
    pub fn wait_held(&self) {
        wait_until("the VM syncs", || self.lock().held > 0);
    }

    /// Lets held and later syncs go on.
    pub fn release(&self) {
        self.lock().is_holding = false;
        self.state.1.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Holding> {
        self.state.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for HeldSyncs {
    fn drop(&mut self) {
        self.release();
    }
}

/// Installs the filter. Returns the descriptor that reports calls.
fn install(program: &[libc::sock_filter]) -> io::Result<OwnedFd> {
    use std::os::fd::FromRawFd;
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

fn send(far: &UnixStream, listener: BorrowedFd<'_>) -> io::Result<()> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut room);
    let fds = [listener];
    beside.push(SendAncillaryMessage::ScmRights(&fds));
    rustix::net::sendmsg(far, &[IoSlice::new(&[0])], &mut beside, SendFlags::empty())?;
    Ok(())
}

/// Returns the listener, or none if the command was never started.
fn receive(near: &UnixStream) -> Option<OwnedFd> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = RecvAncillaryBuffer::new(&mut room);
    let (mut byte, flags) = ([0], RecvFlags::CMSG_CLOEXEC);
    rustix::net::recvmsg(near, &mut [IoSliceMut::new(&mut byte)], &mut beside, flags).ok()?;
    beside.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    })
}

/// Lets one call go on when the test allows it. Returns an error when the child is gone.
fn pass_on(listener: &OwnedFd, (state, changed): &(Mutex<Holding>, Condvar)) -> io::Result<()> {
    let mut polled = [PollFd::new(listener, PollFlags::IN)];
    poll(&mut polled, None)?;
    if !polled[0].revents().contains(PollFlags::IN) {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    // SAFETY: zeros are valid for these integers, and the kernel requires them.
    let mut call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills one structure.
    if unsafe { libc::ioctl(listener.as_raw_fd(), RECEIVE, &raw mut call) } != 0 {
        return Ok(()); // the calling thread was killed meanwhile
    }
    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
    state.held += u32::from(state.is_holding);
    while state.is_holding {
        state = changed.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
    drop(state);
    let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
    let mut answer = libc::seccomp_notif_resp { id: call.id, val: 0, error: 0, flags };
    // SAFETY: the kernel reads one structure. It refuses the answer if the thread is gone, which does no
    // harm.
    unsafe { libc::ioctl(listener.as_raw_fd(), ANSWER, &raw mut answer) };
    Ok(())
}
