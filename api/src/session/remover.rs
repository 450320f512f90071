//! `--rm`: a process that removes a VM's run directory once the VM has ended.
//!
//! The VM's process cannot do so: it may be confined, and may be killed. The client cannot either: it may
//! leave the VM.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;

use crate::failure::Failure;
use crate::run_dir::record::Record;
use crate::run_dir::root::RunRoot;

/// Starts the process for a claimed name. If the VM does not start, it ends with the claim. This process has
/// one thread.
///
/// # Errors
/// The host refuses a process.
pub(super) fn start(root: &RunRoot, record: &Record) -> Result<(), Failure> {
    // SAFETY: the process has one thread, so no lock of the heap is held in the child.
    match unsafe { libc::fork() } {
        -1 => {
            let act = "start the process that removes the run directory";
            Err(Failure::system(act, io::Error::last_os_error()))
        }
        0 => {
            // A directory that stays is an ended VM's: prune removes it.
            let _ = isolate().map(|()| root.remove_at_end(record));
            // SAFETY: ends this process, which has nothing to flush.
            unsafe { libc::_exit(0) }
        }
        _ => Ok(()),
    }
}

/// Leaves terminal and working directory, and closes all descriptors: the claim's lock would keep the VM
/// alive.
fn isolate() -> io::Result<()> {
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"volt-remover");
    rustix::process::chdir("/")?;
    // SAFETY: this process uses none of these descriptors.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}
