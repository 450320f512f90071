//! The process that waits for a VM's in another pid namespace.
//!
//! A process cannot enter a pid namespace, and only its children do. Therefore the VM's process is a child,
//! and the process that the user started becomes its keeper:
//!
//! ```text
//!   the started process ── fork ──> the VM's process, process 1 of the pid namespace
//!   keeper: passes on signals, removes the control group at the end, ends as the VM's process did
//! ```
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpid, pidfd_open, set_parent_process_death_signal,
};

use super::limits;
use crate::sandbox::process;

/// Forks the VM's process and returns in it. The calling process, which has one thread, becomes its keeper
/// and does not return. At the end it removes the directory of this name in `cgroup.0`.
///
/// # Errors
/// The host refuses a process.
pub(super) fn fork(cgroup: Option<(&OwnedFd, &CStr)>) -> rustix::io::Result<()> {
    let own = pidfd_open(getpid(), PidfdFlags::empty())?;
    let mask = block_signals();
    // SAFETY: the process has one thread, so no lock of the heap is held in the child.
    match unsafe { libc::fork() } {
        -1 => Err(last_errno()),
        0 => {
            // The keeper's end is the end of its VM, however it ends.
            set_parent_process_death_signal(Some(Signal::KILL))?;
            let mut keeper = [PollFd::new(&own, PollFlags::IN)];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            if poll(&mut keeper, Some(&now))? > 0 {
                // SAFETY: ends a process that has done nothing yet.
                unsafe { libc::_exit(1) };
            }
            // SAFETY: `mask` is the mask of before.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, std::ptr::null_mut()) };
            Ok(())
        }
        child => keep(Pid::from_raw(child).expect("a process id is positive"), cgroup),
    }
}

fn last_errno() -> Errno {
    let number = std::io::Error::last_os_error().raw_os_error();
    number.map_or(Errno::AGAIN, Errno::from_raw_os_error)
}

/// Blocks all signals and returns the mask of before.
fn block_signals() -> libc::sigset_t {
    // SAFETY: sigfillset initialises the set; both sets live during the calls.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    }
}

/// The keeper's process. It keeps standard error and the directory of the control group.
fn keep(child: Pid, cgroup: Option<(&OwnedFd, &CStr)>) -> ! {
    let _ = rustix::thread::set_name(c"volt-keeper");
    // Neither is needed for the rest, and the VM does not depend on either.
    let _ = process::harden();
    let _ = limits::drop_capabilities();
    close_all_but(cgroup.as_ref().map(|(directory, _)| directory.as_raw_fd()));
    let status = loop {
        let (signal, is_of_process) = next_signal();
        if signal == libc::SIGCHLD {
            if let Some(status) = reap(child) {
                break status;
            }
        } else if is_of_process {
            // From a process. The terminal and the kernel signal the VM's process too.
            // SAFETY: the child is not reaped, so the number is its own.
            unsafe { libc::kill(child.as_raw_nonzero().get(), signal) };
        }
    };
    if let Some((directory, name)) = cgroup {
        // A process of the VM that still ends keeps it. It is empty afterwards, and harmless.
        let _ = rustix::fs::unlinkat(directory, name, rustix::fs::AtFlags::REMOVEDIR);
    }
    end_as(status)
}

/// Waits for a signal. Returns its number, and whether a process sent it.
fn next_signal() -> (i32, bool) {
    // SAFETY: siginfo_t consists of integers, sigfillset initialises the set, and both live during the calls.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        let signal = libc::sigwaitinfo(&raw const all, &raw mut info);
        (signal, signal > 0 && info.si_code <= 0)
    }
}

/// Takes the exit statuses of ended children. Returns that of `child`.
fn reap(child: Pid) -> Option<WaitStatus> {
    let mut found = None;
    while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
        found = found.or((pid == child).then_some(status));
    }
    found
}

fn close_all_but(kept: Option<i32>) {
    let close = |first: i32, last: libc::c_uint| {
        if i64::from(first) <= i64::from(last) {
            // SAFETY: this process uses none of its descriptors but standard error and `kept`.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
    };
    close(0, 1);
    match kept {
        Some(kept) => {
            close(3, libc::c_uint::try_from(kept - 1).unwrap_or_default());
            close(kept + 1, libc::c_uint::MAX);
        }
        None => close(3, libc::c_uint::MAX),
    }
}

/// Ends the keeper with the status of its child.
fn end_as(status: WaitStatus) -> ! {
    if let Some(signal) = status.terminating_signal() {
        // SAFETY: restores the default of a signal, unblocks it and sends it to this process.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, signal);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
            libc::raise(signal);
        }
    }
    // SAFETY: ends the process without the handlers that were registered for the VM's.
    unsafe { libc::_exit(status.exit_status().unwrap_or(1)) }
}
