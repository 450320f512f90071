//! Limits of a process.
#![allow(unsafe_code)]

use crate::{OrSay, Result};

/// Lets this process have so many descriptors.
///
/// # Errors
/// Without the privilege.
pub fn allow_descriptors(count: u64) -> Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is what the call writes to.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit.rlim_cur = limit.rlim_cur.max(count);
    limit.rlim_max = limit.rlim_max.max(count);
    // SAFETY: `limit` is initialised and only read.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    let act = format!("have {count} descriptors open");
    if set == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()).or_say(&act) }
}
