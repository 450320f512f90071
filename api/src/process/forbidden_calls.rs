//! The handler of SIGSYS: a thread made a system call that its seccomp filter forbids. The process ends, and
//! the message names thread, call and arguments.
//!
//! abort(3) of musl blocks SIGSYS and makes a call that filters forbid, since it takes a thread of any
//! process: tkill(2). A process that aborts thus ends by SIGSYS.
#![allow(unsafe_code)]

use std::fmt::{self, Write};
use std::mem::MaybeUninit;
use std::ptr;

use syscalls::Sysno;
use volt_vmm::internal::ThisThread;

use crate::process::exit::Status;
use crate::run_dir::outcome::Cause;
use crate::run_dir::sudden_end;
use crate::terminal;

/// `SYS_SECCOMP`: a seccomp filter sent the signal (asm-generic/siginfo.h).
const SYS_SECCOMP: i32 = 1;

/// Installs the handler, with one system call.
pub(crate) fn install_handler() {
    // SAFETY: zeroes are a valid sigaction (no flags, empty mask). The handler has the signature that
    // SA_SIGINFO asks for and calls async-signal-safe functions only.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = on_forbidden_call as extern "C" fn(_, _, _) as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGSYS, &raw const action, ptr::null_mut());
    }
}

/// `struct siginfo` of SIGSYS, from its start (signal(7), `_sigsys`).
#[repr(C)]
struct SignalOfCall {
    signo: i32,
    errno: i32,
    code: i32,
    _pad: i32,
    address: u64,
    call: i32,
    arch: u32,
}

extern "C" fn on_forbidden_call(_: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passed both pointers. For SIGSYS of a filter the info has this layout.
    let (call, code, context) = unsafe {
        ((*info.cast::<SignalOfCall>()).call, (*info).si_code, &*context.cast::<libc::ucontext_t>())
    };
    let register = |number: i32| context.uc_mcontext.gregs[number as usize];
    let arguments = [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8, libc::REG_R9];
    let mut text = Text::default();
    let _ = text.message(code, call, arguments.map(register));
    terminal::leave_raw_mode();
    let status = Status::Forbidden.code();
    let message = "a thread made a system call that its seccomp filter forbids; the log names it";
    sudden_end::record(status, Cause::Failed, message);
    // SAFETY: the text is initialized up to its length. `_exit` runs no handlers, which might wait for this
    // thread.
    unsafe {
        libc::write(2, text.bytes.as_ptr().cast(), text.len);
        libc::_exit(status.into());
    }
}

/// A message on the stack: the heap may be locked by the thread that was interrupted.
struct Text {
    bytes: [u8; 320],
    len: usize,
}

impl Default for Text {
    fn default() -> Self {
        Self { bytes: [0; 320], len: 0 }
    }
}

impl Text {
    fn message(&mut self, code: i32, call: i32, arguments: [i64; 6]) -> fmt::Result {
        let thread = ThisThread::get();
        let name = thread.name();
        write!(self, "volt-vmm: thread {name} made a system call that its seccomp filter forbids: ")?;
        if code != SYS_SECCOMP {
            return writeln!(self, "SIGSYS, sent by another process");
        }
        match Sysno::new(call as usize) {
            Some(call) => write!(self, "{}", call.name())?,
            None => write!(self, "number {call}")?,
        }
        let [a, b, c, d, e, f] = arguments;
        writeln!(self, "({a:#x}, {b:#x}, {c:#x}, {d:#x}, {e:#x}, {f:#x})")
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.get_mut(self.len..).and_then(|rest| rest.get_mut(..text.len()));
        room.ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_names_thread_call_and_arguments() {
        let mut text = Text::default();
        let call = i32::try_from(libc::SYS_ioctl).unwrap();
        text.message(SYS_SECCOMP, call, [3, 0xae80, 0, 0, 0, -1]).unwrap();
        let text = std::str::from_utf8(&text.bytes[..text.len]).unwrap();
        let thread = std::thread::current().name().unwrap()[..15].to_owned();
        assert!(text.contains(&format!("thread {thread} ")), "{text}");
        assert!(text.ends_with("forbids: ioctl(0x3, 0xae80, 0x0, 0x0, 0x0, 0xffffffffffffffff)\n"), "{text}");
    }
}
