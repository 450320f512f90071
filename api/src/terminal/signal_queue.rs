//! Signals of a client of a VM, as its loop reads them.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

/// Signals of this process, blocked and read from a descriptor (signalfd(2)) until this is dropped.
pub(crate) struct SignalQueue {
    taken: OwnedFd,
    /// The signals that were blocked before.
    before: libc::sigset_t,
}

impl fmt::Debug for SignalQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SignalQueue").field(&self.taken).finish()
    }
}

impl Drop for SignalQueue {
    fn drop(&mut self) {
        // SAFETY: the set is one that pthread_sigmask wrote.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut()) };
    }
}

impl AsFd for SignalQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.taken.as_fd()
    }
}

impl SignalQueue {
    const ENDING: [libc::c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];
    const OF_TERMINALS: [libc::c_int; 3] = [libc::SIGTSTP, libc::SIGCONT, libc::SIGWINCH];

    /// Blocks the signals that ask this process to end, stop or continue, or tell of another window size.
    ///
    /// # Errors
    /// The host has no descriptor.
    pub(crate) fn block() -> io::Result<Self> {
        Self::of(Self::ENDING.into_iter().chain(Self::OF_TERMINALS))
    }

    /// Blocks the signals that ask this process to end.
    ///
    /// # Errors
    /// As [`SignalQueue::block`].
    pub(crate) fn block_ending() -> io::Result<Self> {
        Self::of(Self::ENDING.into_iter())
    }

    fn of(signals: impl Iterator<Item = libc::c_int>) -> io::Result<Self> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset initializes the set before its first use; the numbers are valid signals.
        let set = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in signals.filter(|signal| !is_ignored(*signal)) {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            set.assume_init()
        };
        // SAFETY: the set lives during the call. The descriptor is new.
        let taken = unsafe {
            match libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
                -1 => return Err(io::Error::last_os_error()),
                descriptor => OwnedFd::from_raw_fd(descriptor),
            }
        };
        let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: both sets live during the call, and zeroes are a valid set.
        let before = unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, before.as_mut_ptr());
            before.assume_init()
        };
        Ok(Self { taken, before })
    }

    /// Takes the signals that are pending.
    pub(crate) fn take(&self) -> Vec<i32> {
        const SIZE: usize = size_of::<libc::signalfd_siginfo>();
        let mut taken = Vec::new();
        let mut buffer = [0; SIZE];
        while rustix::io::read(&self.taken, &mut buffer).is_ok_and(|count| count == SIZE) {
            // The first field is the signal's number.
            taken.push(i32::from_ne_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]));
        }
        taken
    }
}

/// Whether the process ignores a signal. A parent that ignores one (nohup, a shell's background job) wants it
/// ignored here too.
pub(crate) fn is_ignored(signal: libc::c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null new action only queries. Zeroes are a valid sigaction if the call fails.
    let action = unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == libc::SIG_IGN
}
