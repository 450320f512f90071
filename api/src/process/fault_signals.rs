//! Handlers of SIGSEGV and SIGBUS for accesses to unavailable guest memory. They end the process with the
//! reason and the status of a crash, because a thread that went on would work with wrong data.
//!
//! A vCPU that accesses such memory gets an error from KVM_RUN instead, and its VM ends in order.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;

use crate::fatal_signals;
use crate::process::exit::Status;
use crate::run_dir::outcome::Cause;
use crate::run_dir::sudden_end;
use crate::terminal;

const SIGNALS: [libc::c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// Installs the handlers, with two system calls.
pub(crate) fn install_handlers() {
    for signal in SIGNALS {
        // SAFETY: zeroes are a valid sigaction (no flags, empty mask). The handler has the signature that
        // SA_SIGINFO asks for and calls async-signal-safe functions only.
        unsafe {
            let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
            action.sa_sigaction = on_fault as extern "C" fn(_, _, _) as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(signal, &raw const action, ptr::null_mut());
        }
    }
}

extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passed `info` to this handler.
    let sent = unsafe { fatal_signals::is_sent(info) };
    let truncated = || (signal == libc::SIGBUS).then(volt_vmm::truncated_memory).flatten();
    if let Some(why) = volt_vmm::unreadable_memory().or_else(truncated).filter(|_| !sent) {
        terminal::leave_raw_mode();
        for part in ["volt-vmm: the guest crashed: its memory cannot be read: ", why, "\n"] {
            // SAFETY: `part` is initialized for its whole length.
            unsafe { libc::write(2, part.as_ptr().cast(), part.len()) };
        }
        let status = Status::Crashed.code();
        sudden_end::record(status, Cause::Crashed, "the guest's memory cannot be read; its log says why");
        // SAFETY: runs no exit handlers, which might wait for this thread.
        unsafe { libc::_exit(status.into()) };
    }
    let status = Status::Signal(signal).code();
    sudden_end::record(status, Cause::Signal, "a signal for faults ended the process");
    if sent {
        fatal_signals::exit(signal);
    }
    // SAFETY: the kernel passed `context` to this handler.
    unsafe { fatal_signals::repeat_with_default_action(signal, context) };
}

#[cfg(test)]
mod tests {
    use std::arch::asm;

    use super::*;

    #[test]
    fn fault_of_the_program_ends_it_by_the_signal_also_with_a_handler() {
        let mut status = 0;
        // SAFETY: the child makes system calls and reads address 0, which is mapped nowhere. The alarm ends a
        // child whose handler is called again and again.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::alarm(20);
                install_handlers();
                asm!("mov {0}, [{0}]", inout(reg) 0_u64 => _);
                libc::_exit(0);
            }
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        }
        assert!(libc::WIFSIGNALED(status), "{status:#x}");
        assert_eq!(libc::WTERMSIG(status), libc::SIGSEGV);
    }

    #[test]
    fn signal_of_another_process_ends_the_program_with_its_number() {
        let mut status = 0;
        // SAFETY: the child makes system calls only.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::alarm(20);
                install_handlers();
                libc::kill(libc::getpid(), libc::SIGBUS);
                libc::_exit(0);
            }
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        }
        assert!(libc::WIFEXITED(status), "{status:#x}");
        assert_eq!(libc::WEXITSTATUS(status), 128 + libc::SIGBUS);
    }
}
