//! How a handler of a fatal signal ends the process. Both ways make no system call that a filter forbids.
#![allow(unsafe_code)]

/// Whether a process sent the signal. A CPU fault would repeat when the handler returns; such a signal does
/// not.
///
/// # Safety
/// `info` is what the kernel passed to the handler.
pub(crate) unsafe fn is_sent(info: *const libc::siginfo_t) -> bool {
    // SAFETY: by the contract.
    unsafe { (*info).si_code <= 0 }
}

/// Ends the process with the status 128+N, as the signals do that end a VM.
pub(crate) fn exit(signal: libc::c_int) -> ! {
    // SAFETY: runs no exit handlers, which might wait for this thread.
    unsafe { libc::_exit(128 + signal) }
}

/// Makes the fault, which repeats after the handler, end the process by the signal: the kernel gives a fault
/// whose signal is blocked the default action (`force_sig_info_to_task` of kernel/signal.c). The handler
/// stays for the faults of other threads.
///
/// # Safety
/// `context` is what the kernel passed to the handler.
pub(crate) unsafe fn repeat_with_default_action(signal: libc::c_int, context: *mut libc::c_void) {
    // SAFETY: by the contract. The kernel takes the mask from there when the handler returns.
    unsafe { libc::sigaddset(&raw mut (*context.cast::<libc::ucontext_t>()).uc_sigmask, signal) };
}
