//! Ctrl-C and SIGTERM end the soak after the act that runs. Guests get Ctrl-C too, so that act may fail.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};

static CAME: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_signal: libc::c_int) {
    CAME.store(true, Ordering::Relaxed);
}

/// Begins to listen for both signals.
pub fn listen() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::signal(signal, note as extern "C" fn(libc::c_int) as libc::sighandler_t) };
    }
}

/// Tells whether a signal came.
pub fn came() -> bool {
    CAME.load(Ordering::Relaxed)
}
