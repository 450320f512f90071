//! The environment of a confined process: without variables that may have secrets.
//!
//! A service manager or a shell passes on tokens and passwords. A guest that takes over its process would
//! read them in its memory, and so would the programs that it starts.
#![allow(unsafe_code)]

use std::ffi::CStr;

use crate::process::jail;

unsafe extern "C" {
    /// The variables, as environ(7) describes them.
    static mut environ: *mut *mut libc::c_char;
}

/// Variables that volt-vmm, its children and passt read: places of files, and how to write messages. A trace
/// of a panic (`RUST_BACKTRACE`) would read files.
const KEPT: [&[u8]; 10] = [
    b"PATH",
    b"HOME",
    b"TMPDIR",
    b"TZ",
    b"TERM",
    b"LANG",
    b"NO_COLOR",
    b"VOLT_RUN_DIR",
    b"VOLT_DATA_DIR",
    jail::VARIABLE.as_bytes(),
];
/// Starts of the names of others.
const KEPT_STARTS: [&[u8]; 2] = [b"XDG_", b"LC_"];

/// Removes all other variables, and overwrites them in `/proc/PID/environ`. The process has one thread.
pub(crate) fn forget_secrets() {
    // SAFETY: the C runtime points `environ` to an array of zero-terminated strings in writable memory, with
    // a null pointer behind the last. No other thread reads it.
    unsafe {
        let (mut from, mut to) = (environ, environ);
        while !from.is_null() && !(*from).is_null() {
            let variable = *from;
            if is_kept(CStr::from_ptr(variable).to_bytes()) {
                *to = variable;
                to = to.add(1);
            } else {
                variable.write_bytes(0, libc::strlen(variable));
            }
            from = from.add(1);
        }
        if !to.is_null() {
            *to = std::ptr::null_mut();
        }
    }
}

/// Whether a variable `NAME=VALUE` stays.
fn is_kept(variable: &[u8]) -> bool {
    let name = variable.split(|byte| *byte == b'=').next().unwrap_or_default();
    KEPT.contains(&name) || KEPT_STARTS.iter().any(|start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_the_program_stay_and_others_go() {
        for kept in
            ["PATH=/bin", "HOME=/root", "XDG_RUNTIME_DIR=/run", "VOLT_RUN_DIR=/r", "LC_ALL=C", "TMPDIR="]
        {
            assert!(is_kept(kept.as_bytes()), "{kept}");
        }
        for gone in ["AWS_SECRET_ACCESS_KEY=x", "PATHS=/bin", "TOKEN", "", "=", "HOMEBREW_GITHUB_API_TOKEN=x"]
        {
            assert!(!is_kept(gone.as_bytes()), "{gone}");
        }
    }
}
