//! The calling thread, as a handler of a signal knows it without a system call: filters forbid some of those.
#![allow(unsafe_code)]

use std::cell::Cell;

/// Length of a thread's name with the terminating zero (`TASK_COMM_LEN`).
const NAME_LEN: usize = 16;

/// A thread.
#[derive(Clone, Copy, Debug)]
pub struct ThisThread {
    /// Number of its process.
    pub process: i32,
    /// Its own number.
    pub thread: i32,
    #[cfg_attr(not(feature = "internal"), allow(dead_code))] // read by handlers of the program
    name: [u8; NAME_LEN],
}

thread_local! {
    /// This thread, from when it was confined.
    static NOTED: Cell<Option<ThisThread>> = const { Cell::new(None) };
}

impl ThisThread {
    /// Returns the calling thread. Async-signal-safe.
    #[must_use]
    pub fn get() -> Self {
        NOTED.get().unwrap_or_else(Self::ask)
    }

    /// Notes the calling thread, which is about to be confined.
    pub(super) fn note() {
        NOTED.set(Some(Self::ask()));
    }

    fn ask() -> Self {
        let mut name = [0; NAME_LEN];
        // SAFETY: the kernel writes at most 16 bytes, with a terminating zero (PR_GET_NAME of prctl(2)).
        unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
        // Not libc's gettid: Rust's standard library has it as a weak symbol, which is null in a static
        // program built with fat LTO.
        let (process, thread) = (rustix::process::getpid(), rustix::thread::gettid());
        let [process, thread] = [process, thread].map(|id| id.as_raw_nonzero().get());
        Self { process, thread, name }
    }

    /// Returns its name.
    #[must_use]
    #[cfg(any(test, feature = "internal"))]
    pub fn name(&self) -> &str {
        let end = self.name.iter().position(|byte| *byte == 0).unwrap_or(NAME_LEN);
        str::from_utf8(&self.name[..end]).unwrap_or_default()
    }

    /// Sends it a signal. Returns 0, or -1 if the kernel refuses. Async-signal-safe. raise(3) of musl makes a
    /// call that filters forbid, since it takes a thread of any process.
    pub fn signal(&self, signal: libc::c_int) -> libc::c_long {
        // SAFETY: the call takes numbers. Threads of this process alone are reached.
        unsafe { libc::syscall(libc::SYS_tgkill, self.process, self.thread, signal) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noted_thread_is_the_same_as_before() {
        let thread = std::thread::Builder::new().name("volt-tested".into()).spawn(|| {
            let asked = ThisThread::get();
            ThisThread::note();
            (asked, ThisThread::get())
        });
        let (asked, noted) = thread.unwrap().join().unwrap();
        assert_eq!((asked.name(), noted.name()), ("volt-tested", "volt-tested"));
        assert_eq!((asked.process, asked.thread), (noted.process, noted.thread));
        assert_ne!(noted.thread, ThisThread::get().thread);
        assert_eq!(noted.process.cast_unsigned(), std::process::id());
    }
}
