//! What a thread of this process gets for guest memory that cannot be had is a signal, for any content would be wrong: the
//! process ends with the reason and the status of a crash. A vCPU's end needs none of this, and is an orderly one.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;

use crate::process::exit::Status;
use crate::terminal;

const SIGNALS: [libc::c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// From now on such a signal ends the process in that way. Two system calls.
pub(crate) fn end_with_reason() {
    for signal in SIGNALS {
        // SAFETY: zeroes are a valid sigaction (no flags, empty mask); the handler has the signature that SA_SIGINFO asks for
        // and calls async-signal-safe functions only.
        unsafe {
            let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
            action.sa_sigaction = on_fault as extern "C" fn(_, _, _) as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(signal, &raw const action, ptr::null_mut());
        }
    }
}

extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: `info` is what the kernel gave this handler.
    let sent = unsafe { (*info).si_code <= 0 };
    let truncated = || (signal == libc::SIGBUS).then(volt_vmm::truncated_memory).flatten();
    if let Some(why) = volt_vmm::unreadable_memory().or_else(truncated).filter(|_| !sent) {
        terminal::leave();
        for part in ["volt-vmm: the guest crashed: its memory cannot be read: ", why, "\n"] {
            // SAFETY: writes bytes that there are.
            unsafe { libc::write(2, part.as_ptr().cast(), part.len()) };
        }
        // SAFETY: ends the process without running anything of it that may wait for this thread.
        unsafe { libc::_exit(Status::Crashed.code().into()) };
    }
    // SAFETY: zeroes are the default action. A fault of the CPU's happens again as soon as this returns, and meets that; a signal
    // that was sent is sent once more.
    unsafe {
        let action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        libc::sigaction(signal, &raw const action, ptr::null_mut());
        if sent {
            libc::raise(signal);
        }
    }
}
