//! The process that waits for a VM's in another pid namespace.
//!
//! A process cannot enter a pid namespace, and only its children do. Therefore the VM's process is a child,
//! and the process that the user started becomes its keeper:
//!
//! ```text
//!   the started process ── fork ──> the VM's process, process 1 of the pid namespace
//!   keeper: passes on signals, removes the control group at the end, ends as the VM's process did
//! ```
//!
//! Process 1 of a pid namespace cannot stop itself, and a shell waits for the keeper to stop. The VM's
//! process therefore asks the keeper to stop both, by a byte in a pipe that signals the keeper (SIGIO).
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpid, pidfd_open, set_parent_process_death_signal,
};

use super::limits;
use crate::sandbox::process;

/// Where the VM's process asks the keeper to stop both.
pub(super) static STOP_REQUESTS: OnceLock<io::PipeWriter> = OnceLock::new();

/// `/proc/PID/stat` of the keeper, if the process was started on a terminal.
pub(super) static KEEPERS_STAT: OnceLock<File> = OnceLock::new();

/// Forks the VM's process and returns in it. The calling process, which has one thread, becomes its keeper
/// and does not return. At the end it removes the directory of this name in `cgroup.0`.
///
/// # Errors
/// The host refuses a process.
pub(super) fn fork(cgroup: Option<(&OwnedFd, &CStr)>) -> rustix::io::Result<()> {
    let own = pidfd_open(getpid(), PidfdFlags::empty())?;
    let stat = io::stdin().is_terminal().then(|| File::open("/proc/self/stat")).and_then(Result::ok);
    let (requests, ask) = io::pipe().map_err(|error| errno_of(&error))?;
    let mask = block_signals();
    // SAFETY: the process has one thread, so no lock of the heap is held in the child.
    match unsafe { libc::fork() } {
        -1 => Err(errno_of(&io::Error::last_os_error())),
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
            let _ = STOP_REQUESTS.set(ask);
            stat.into_iter().for_each(|stat| drop(KEEPERS_STAT.set(stat)));
            Ok(())
        }
        child => keep(Pid::from_raw(child).expect("a process id is positive"), &requests, cgroup),
    }
}

fn errno_of(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::AGAIN, Errno::from_raw_os_error)
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

/// The keeper's process. It keeps standard error, the pipe for requests and the directory of the control
/// group.
fn keep(child: Pid, requests: &io::PipeReader, cgroup: Option<(&OwnedFd, &CStr)>) -> ! {
    let _ = rustix::thread::set_name(c"volt-keeper");
    // Neither is needed for the rest, and the VM does not depend on either.
    let _ = process::harden();
    let _ = limits::drop_capabilities();
    // Without it, Ctrl-Z has no effect.
    let _ = signal_at_requests(requests);
    let directory = cgroup.as_ref().map(|(directory, _)| directory.as_raw_fd());
    close_all_but([Some(libc::STDERR_FILENO), Some(requests.as_raw_fd()), directory]);
    let status = loop {
        let (signal, is_of_process) = next_signal();
        if signal == libc::SIGCHLD {
            if let Some(status) = reap(child) {
                break status;
            }
        } else if signal == libc::SIGIO {
            // The end of the VM's process signals, too.
            if rustix::io::read(requests, &mut [0; 64]).is_ok_and(|requests| requests > 0) {
                // SAFETY: the child is not reaped, so the number is its own. Both go on at SIGCONT.
                unsafe {
                    libc::kill(child.as_raw_nonzero().get(), libc::SIGSTOP);
                    libc::raise(libc::SIGSTOP);
                }
            }
        } else if is_of_process {
            // From a process. The terminal and the kernel signal the VM's process too.
            // SAFETY: the child is not reaped, so the number is its own.
            unsafe { libc::kill(child.as_raw_nonzero().get(), signal) };
        }
    };
    if let Some((directory, name)) = cgroup {
        // A process of the VM that still ends keeps it, and so does a parent that this user may not write to,
        // such as the root of all groups: the process has no capability. It is empty afterwards, and
        // harmless.
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

/// Makes the kernel send SIGIO to this process at each request (fcntl(2), `O_ASYNC`).
fn signal_at_requests(requests: &io::PipeReader) -> io::Result<()> {
    // SAFETY: the call takes numbers.
    if unsafe { libc::fcntl(requests.as_raw_fd(), libc::F_SETOWN, libc::getpid()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(fcntl_setfl(requests, OFlags::NONBLOCK | OFlags::from_bits_retain(libc::O_ASYNC.cast_unsigned()))?)
}

/// Closes all descriptors of this process but these.
fn close_all_but<const N: usize>(kept: [Option<i32>; N]) {
    let mut kept: Vec<i32> = kept.into_iter().flatten().collect();
    kept.sort_unstable();
    let mut first = 0;
    for last in kept.iter().map(|number| number - 1).chain([i32::MAX]) {
        if first <= last {
            // SAFETY: this process uses none of its descriptors but these.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
        first = last.saturating_add(2);
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
