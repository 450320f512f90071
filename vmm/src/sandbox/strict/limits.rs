//! Limits of a process, besides that of its control group.

use rustix::io::Result;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

/// Most descriptors. Each connection of a vsock device takes one.
const MOST_FILES: u64 = 16384;

/// Bounds the descriptors of the process, and forbids message queues. Files keep their size: a disk may be
/// large. Threads have the limit of the control group, since RLIMIT_NPROC counts all processes of the user.
///
/// # Errors
/// The kernel refuses.
pub fn limit() -> Result<()> {
    let files = getrlimit(Resource::Nofile);
    let at_most = |limit: Option<u64>| Some(limit.map_or(MOST_FILES, |limit| limit.min(MOST_FILES)));
    setrlimit(Resource::Nofile, Rlimit { current: at_most(files.current), maximum: at_most(files.maximum) })?;
    setrlimit(Resource::Msgqueue, Rlimit { current: Some(0), maximum: Some(0) })
}

/// Gives up all capabilities, also those in the process's user namespace.
///
/// # Errors
/// The kernel refuses.
pub fn drop_capabilities() -> Result<()> {
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
}
