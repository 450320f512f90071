//! A process that resets the terminal if the client of a VM is killed: SIGKILL leaves the client no time.
//!
//! It waits for the end of a pipe whose other end only the client has. A byte before the end tells that the
//! client has reset the terminal itself: the raw mode may be that of another client by then. It resets the
//! terminal only if that is still in the mode that the client set, because a shell may have set its own
//! meanwhile. Client and guardian hold a lock of the terminal, for which the next client waits: it would take
//! raw mode for the mode to return to, and the guardian would take that client's raw mode for its own.
#![allow(unsafe_code)]

use std::io::{self, PipeWriter, Read, Write, stdin};
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

use super::raw_of;
use crate::failure::Failure;

/// Longest wait for an earlier client of the terminal, which may also be stopped, or for its guardian.
const EARLIER: Duration = Duration::from_secs(2);
/// The device number of /dev/tty (Documentation/admin-guide/devices.txt).
const DEV_TTY: u64 = 5 << 8;
/// Time between two attempts to take the lock.
const AGAIN: Duration = Duration::from_millis(5);

/// The terminal of a client. Another client of it waits for a while.
#[derive(Debug)]
pub(super) struct TerminalLock {
    /// Standard input, opened once more: the shell has the other opening, and would keep its lock.
    opened: Option<OwnedFd>,
}

impl TerminalLock {
    /// Takes the lock, or goes on without it where the host refuses, or where another client keeps it.
    pub(super) fn take() -> Self {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let opened = rustix::fs::open("/proc/self/fd/0", flags, Mode::empty()).ok();
        // All terminals of the host have this file.
        let is_shared =
            |opened: &OwnedFd| rustix::fs::fstat(opened).is_ok_and(|found| found.st_rdev == DEV_TTY);
        let opened = opened.filter(|opened| !is_shared(opened));
        let until = Instant::now() + EARLIER;
        let is_taken = |opened: &OwnedFd| {
            flock(opened, FlockOperation::NonBlockingLockExclusive) == Err(rustix::io::Errno::WOULDBLOCK)
        };
        while opened.as_ref().is_some_and(is_taken) && Instant::now() < until {
            thread::sleep(AGAIN);
        }
        Self { opened }
    }

    fn descriptor(&self) -> Option<i32> {
        self.opened.as_ref().map(AsRawFd::as_raw_fd)
    }
}

/// The client's end. The guardian ends with it.
#[derive(Debug)]
pub(super) struct Guardian(PipeWriter);

impl Guardian {
    /// Starts the guardian of a terminal that is in mode `found`, before raw mode. It keeps the lock, too.
    /// The process has one thread.
    ///
    /// # Errors
    /// The host refuses a process.
    pub(super) fn start(found: &Termios, lock: &TerminalLock) -> Result<Self, Failure> {
        let failed = |source| Failure::system("start the guardian of the terminal", source);
        let (mut end, keep) = io::pipe().map_err(failed)?;
        // SAFETY: the process has one thread, so no lock of the heap is held in the child.
        match unsafe { libc::fork() } {
            -1 => Err(failed(io::Error::last_os_error())),
            0 => {
                drop(keep);
                isolate([Some(end.as_raw_fd()), lock.descriptor()]);
                if !end.read(&mut [0]).is_ok_and(|count| count > 0) {
                    reset(found);
                }
                // SAFETY: ends this process, which has nothing to flush.
                unsafe { libc::_exit(0) }
            }
            _ => Ok(Self(keep)),
        }
    }

    /// Ends it after the client has reset the terminal.
    pub(super) fn dismiss(mut self) {
        // One that was killed does not read it.
        let _ = self.0.write_all(&[1]);
    }
}

/// Ignores the signals of the terminal, and closes all descriptors but standard input and those `kept`: the
/// reader of the client's output waits for its end.
fn isolate(kept: [Option<i32>; 2]) {
    let ignored = [libc::SIGINT, libc::SIGQUIT, libc::SIGTSTP, libc::SIGTTOU, libc::SIGTERM, libc::SIGHUP];
    for signal in ignored {
        // SAFETY: a signal may be ignored at any time.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let _ = rustix::thread::set_name(c"volt-guardian");
    let mut kept: Vec<_> = kept.into_iter().flatten().collect();
    kept.sort_unstable();
    let mut first = 1;
    for next in kept.into_iter().chain([i32::MAX]) {
        if first < next {
            // SAFETY: this process uses none of these descriptors.
            unsafe { libc::syscall(libc::SYS_close_range, first, next - 1, 0) };
        }
        first = next.saturating_add(1);
    }
}

fn reset(found: &Termios) {
    let same = |a: &Termios, b: &Termios| {
        (a.input_modes, a.output_modes, a.control_modes, a.local_modes)
            == (b.input_modes, b.output_modes, b.control_modes, b.local_modes)
    };
    if tcgetattr(stdin()).is_ok_and(|now| same(&now, &raw_of(found))) {
        let _ = tcsetattr(stdin(), OptionalActions::Now, found);
    }
}
