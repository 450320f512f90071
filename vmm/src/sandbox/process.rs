//! Confinement of the whole process that needs no filter.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::sync::OnceLock;

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

use crate::error::{Error, Result};

/// The process's own page map, opened while it may still be.
static PAGEMAP: OnceLock<File> = OnceLock::new();
const PAGEMAP_PATH: &str = "/proc/self/pagemap";

/// Keeps other processes of the user from reading this one's memory and files (`PR_SET_DUMPABLE`), and the
/// kernel from writing it to a core file. The process and its children cannot gain privileges
/// (`no_new_privs`) and pass on none of theirs (ambient capabilities).
///
/// # Errors
/// [`Error::Host`] if the kernel refuses.
pub(super) fn harden() -> Result<()> {
    let refused = |act: &'static str| move |source: rustix::io::Errno| Error::host(act, source);
    // A service manager may have asked for it. Pages shared by content tell a neighbour what they hold. A
    // kernel older than 6.4 does not know the call.
    let _ = unset_memory_merge();
    rustix::thread::set_no_new_privs(true).map_err(refused("set no_new_privs"))?;
    // A kernel older than 4.3 has none.
    let _ = rustix::thread::clear_ambient_capability_set();
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(refused("make the process not dumpable"))?;
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    setrlimit(Resource::Core, none).map_err(refused("forbid core files"))
}

/// Makes a process of root, the calling thread's, one of a user without rights. A process of another user,
/// and one of root in a user namespace without that user, stay as they are.
pub(super) fn become_nobody() {
    /// The user `nobody` (`overflowuid` of the kernel).
    const NOBODY: libc::uid_t = 65534;
    if !rustix::process::geteuid().is_root() {
        return;
    }
    // SAFETY: the calls take numbers; an empty list is not read.
    unsafe {
        // A user namespace may refuse this one alone.
        libc::setgroups(0, std::ptr::null());
        libc::setresgid(NOBODY, NOBODY, NOBODY);
        libc::setresuid(NOBODY, NOBODY, NOBODY);
    }
}

/// Opens the process's own page map. Without CAP_DAC_OVERRIDE, a process that is not dumpable may not, and
/// one in an empty root does not find it.
pub(super) fn keep_pagemap() {
    if let Ok(file) = File::open(PAGEMAP_PATH) {
        let _ = PAGEMAP.set(file);
    }
}

/// Takes the process's memory out of the search for pages of equal content (`PR_SET_MEMORY_MERGE`, KSM).
fn unset_memory_merge() -> io::Result<()> {
    // SAFETY: the call takes numbers.
    match unsafe { libc::prctl(libc::PR_SET_MEMORY_MERGE, 0, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Opens the page map of this process.
///
/// # Errors
/// The kernel refuses; or the thread is confined, and the page map could not be opened before.
pub(crate) fn pagemap() -> io::Result<File> {
    match (PAGEMAP.get(), super::kind_of_this_thread()) {
        (Some(file), _) => file.try_clone(),
        (None, None) => File::open(PAGEMAP_PATH),
        (None, Some(_)) => {
            let problem = "it could not be opened when this process was confined; mount /proc where the \
                           process runs, or leave it unconfined";
            Err(io::Error::new(io::ErrorKind::NotFound, problem))
        }
    }
}
