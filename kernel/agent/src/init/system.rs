//! System calls that neither the standard library nor rustix offers, as safe functions.
#![allow(unsafe_code)]

use std::io;
use std::mem::zeroed;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr::{null, null_mut};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Pid;

// ---- Signals ----------------------------------------------------------------------------------------------

fn set_of(signals: impl IntoIterator<Item = i32>) -> libc::sigset_t {
    // SAFETY: a set of zeros is valid and empty, and sigaddset changes nothing else.
    unsafe {
        let mut set = zeroed();
        for signal in signals {
            libc::sigaddset(&raw mut set, signal);
        }
        set
    }
}

/// Blocks these signals. Process 1 gets them even so: Linux ignores only signals that are not blocked.
pub(super) fn block_signals(signals: impl IntoIterator<Item = i32>) {
    let set = set_of(signals);
    // SAFETY: the kernel reads the set during the call; the null pointer asks for no old one.
    unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, null_mut()) };
}

/// Unblocks all signals.
pub(super) fn unblock_signals() {
    let set = set_of([]);
    // SAFETY: the kernel reads the set during the call; the null pointer asks for no old one.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const set, null_mut()) };
}

/// Takes the next of these signals, all of them blocked. Returns its number, and whether the kernel sent it
/// of itself. Returns none after the time.
pub(super) fn next_signal(
    signals: impl IntoIterator<Item = i32>,
    time: Option<Duration>,
) -> Option<(i32, bool)> {
    /// `SI_KERNEL` of asm-generic/siginfo.h.
    const OF_KERNEL: i32 = 0x80;
    let set = set_of(signals);
    let time = time.map(|time| libc::timespec {
        tv_sec: time.as_secs().cast_signed(),
        tv_nsec: time.subsec_nanos().into(),
    });
    let time = time.as_ref().map_or(null(), std::ptr::from_ref);
    // SAFETY: zeros are a valid siginfo. All pointers are null or to values that live through the call.
    let (number, information) = unsafe {
        let mut information: libc::siginfo_t = zeroed();
        (libc::sigtimedwait(&raw const set, &raw mut information, time), information)
    };
    (number > 0).then_some((number, information.si_code == OF_KERNEL))
}

/// Opens a descriptor that is readable while one of these signals, all of them blocked, is pending.
pub(super) fn signal_file(signals: impl IntoIterator<Item = i32>) -> io::Result<OwnedFd> {
    let set = set_of(signals);
    // SAFETY: the kernel reads the set during the call, and a new descriptor has no other owner.
    unsafe {
        let made = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if made < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(made)) }
    }
}

/// Waits until one of the descriptors is readable or closed, or until the time has passed.
pub(super) fn await_input<const N: usize>(descriptors: [BorrowedFd<'_>; N], time: Option<Duration>) {
    let mut descriptors = descriptors.map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
    let time = time.and_then(|time| Timespec::try_from(time).ok());
    let _ = poll(&mut descriptors, time.as_ref());
}

/// Sends a signal. A process that has ended needs none.
pub(super) fn kill(process: Pid, signal: i32) {
    // SAFETY: kill touches no memory.
    unsafe { libc::kill(process.as_raw_nonzero().get(), signal) };
}

/// Kills all processes but process 1.
pub(super) fn kill_all() {
    // SAFETY: kill touches no memory.
    unsafe { libc::kill(-1, libc::SIGKILL) };
}

/// Tells whether this process has children, ended or not.
pub(super) fn has_children() -> bool {
    // SAFETY: zeros are a valid siginfo, and the pointer is to one that lives through the call.
    unsafe {
        let mut information: libc::siginfo_t = zeroed();
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        libc::waitid(libc::P_ALL, 0, &raw mut information, options) == 0
    }
}

/// Returns how many bytes a terminal has yet to send.
pub(super) fn unsent(terminal: impl AsFd) -> i32 {
    let mut unsent = 0;
    // SAFETY: the kernel writes an int, which lives through the call.
    unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), libc::TIOCOUTQ as libc::Ioctl, &raw mut unsent) };
    unsent
}

// ---- Processes --------------------------------------------------------------------------------------------

/// Forks process 1. Returns `None` in the child.
pub(super) fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: process 1 has one thread, so that the child finds no lock taken.
    match unsafe { libc::fork() } {
        ..0 => Err(io::Error::last_os_error()),
        child => Ok(Pid::from_raw(child)),
    }
}

/// Calls `act` in the child, after its input and output are set, with all signals unblocked. `act` may make
/// system calls alone.
pub(super) fn before_exec(
    command: &mut Command,
    mut act: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
) {
    // SAFETY: the child has one thread, as process 1 has. Its calls are async-signal-safe, and an empty set
    // is valid.
    unsafe {
        command.pre_exec(move || {
            unblock_signals();
            act()
        });
    }
}
