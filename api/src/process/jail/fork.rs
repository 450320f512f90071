//! Forks of the jailer: into a session, and into a pid namespace.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process, setsid};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::directory::write_pid;
use crate::failure::Failure;

/// Goes on in a child without a terminal. The calling process ends with status 0.
///
/// # Errors
/// The host refuses.
pub(super) fn daemonize(null: &File) -> Result<(), Failure> {
    let refused =
        |source: rustix::io::Errno| Failure::system("detach from the session for --daemonize", source);
    fork_and_exit()?;
    setsid().map_err(refused)?;
    // A process that does not lead its session gets no terminal by opening one.
    fork_and_exit()?;
    dup2_stdin(null).and_then(|()| dup2_stdout(null)).and_then(|()| dup2_stderr(null)).map_err(refused)
}

fn fork_and_exit() -> Result<(), Failure> {
    match fork("start a process for --daemonize")? {
        None => Ok(()),
        Some(_) => exit(),
    }
}

/// Goes on in a child, the first process of a pid namespace. The calling process writes the child's number
/// to the pid file and ends with status 0.
///
/// # Errors
/// The host refuses.
pub(super) fn into_pid_namespace(pid_file: &Path) -> Result<(), Failure> {
    // The end of a session's leader would send SIGHUP to the child.
    let leads_session = leads_session();
    // SAFETY: children enter the namespace. The memory of this process stays as it is.
    unsafe { unshare_unsafe(UnshareFlags::NEWPID) }
        .map_err(|source| Failure::system("make a pid namespace for --new-pid-ns", source))?;
    match fork("start a process for --new-pid-ns")? {
        None if leads_session => {
            setsid().map(drop).map_err(|source| Failure::system("make a session for --new-pid-ns", source))
        }
        None => Ok(()),
        Some(child) => {
            write_pid(pid_file, child.as_raw_nonzero().get().unsigned_abs()).inspect_err(|_| {
                let _ = kill_process(child, Signal::KILL);
            })?;
            exit()
        }
    }
}

/// Whether the calling process leads its session. A session whose leader is in no pid namespace of this
/// process has the number 0, which is none for rustix.
fn leads_session() -> bool {
    // SAFETY: the calls take and return numbers.
    unsafe { libc::getsid(0) == libc::getpid() }
}

/// Forks this process, which has one thread. Returns the child in the parent.
fn fork(act: &str) -> Result<Option<Pid>, Failure> {
    // SAFETY: the process has one thread, so no lock of the heap is held in the child.
    match unsafe { libc::fork() } {
        -1 => Err(Failure::system(act, io::Error::last_os_error())),
        child => Ok(Pid::from_raw(child)),
    }
}

fn exit() -> ! {
    // SAFETY: ends this process, which has nothing to flush.
    unsafe { libc::_exit(0) }
}
