//! Processes that stand still, as if the host gave them no processor time. SIGCONT does not continue them:
//! the kernel sends it to stopped members of an orphaned process group.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ptr;

/// A process that stands still until the drop. The thread that holds it is its tracer (ptrace(2)).
#[derive(Debug)]
pub struct Held {
    pid: libc::pid_t,
    _of_this_thread: PhantomData<*const ()>,
}

impl Held {
    /// Stops a process with one thread.
    ///
    /// # Panics
    /// The host refuses.
    #[must_use]
    pub fn stop(pid: u32) -> Self {
        let pid = pid.try_into().expect("a process id");
        for request in [libc::PTRACE_SEIZE, libc::PTRACE_INTERRUPT] {
            ask(request, pid).expect("hold a process");
        }
        // SAFETY: the status is not asked for.
        let stopped = unsafe { libc::waitpid(pid, ptr::null_mut(), libc::__WALL) };
        assert_eq!(stopped, pid, "{}", std::io::Error::last_os_error());
        Self { pid, _of_this_thread: PhantomData }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // A killed one is gone.
        let _ = ask(libc::PTRACE_DETACH, self.pid);
    }
}

fn ask(request: libc::c_int, pid: libc::pid_t) -> std::io::Result<()> {
    let null = ptr::null_mut::<libc::c_void>();
    // SAFETY: these requests take no address, and 0 as their data.
    match unsafe { libc::ptrace(request, pid, null, null) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}
