//! The terminal on standard input: in raw mode while the guest uses it, reset at every end of the process.
//! The ends are a return, a panic, a signal that ends the process (see `signals`) and a fatal signal such as
//! SIGSEGV.
//!
//! ```text
//!             enter (in the foreground only)
//! as found <---------------------------------> raw
//!             leave; panic; fatal signal; stop
//! ```
#![allow(unsafe_code)]

pub(crate) mod attached;
pub(crate) mod console;
mod guardian;
pub(crate) mod interrupts;
pub(crate) mod signal_queue;

use std::io::{IsTerminal, stdin, stdout};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Once, OnceLock};
use std::{panic, ptr, thread};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr};
use volt_job::start::Size;
use volt_vmm::internal::isolation;

use crate::fatal_signals;

/// Signals that the kernel sends for errors of the program.
const FATAL: [libc::c_int; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGABRT, libc::SIGFPE];

/// A handler with SA_SIGINFO (sigaction(2)).
type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

/// The settings before raw mode.
static FOUND: OnceLock<Termios> = OnceLock::new();
/// Whether this process has set raw mode.
static RAW: AtomicBool = AtomicBool::new(false);
/// The actions of the fatal signals before ours.
static EARLIER: OnceLock<[libc::sigaction; 5]> = OnceLock::new();

/// Says whether standard input is a terminal.
pub(crate) fn is_terminal() -> bool {
    stdin().is_terminal()
}

/// The size of the terminal, if standard output or standard input is one.
pub(crate) fn size() -> Option<Size> {
    let found = tcgetwinsize(stdout()).or_else(|_| tcgetwinsize(stdin())).ok()?;
    (found.ws_col > 0 && found.ws_row > 0).then_some(Size { cols: found.ws_col, rows: found.ws_row })
}

/// Says whether this process is in the terminal's foreground. A background job may not use the terminal.
pub(crate) fn in_foreground() -> bool {
    isolation::is_in_foreground().unwrap_or_else(|| {
        // SAFETY: the call returns a number. It is 0, and none for rustix, if the group's leader is in no pid
        // namespace of this process.
        let own = unsafe { libc::getpgrp() };
        tcgetpgrp(stdin()).is_ok_and(|foreground| foreground.as_raw_nonzero().get() == own)
    })
}

/// Sets raw mode. Does nothing without a terminal or in the background.
pub(crate) fn enter_raw_mode() {
    if !in_foreground() {
        // The foreground job has set the mode that it needs.
        RAW.store(false, Ordering::SeqCst);
        return;
    }
    let Ok(now) = tcgetattr(stdin()) else { return };
    let found = FOUND.get_or_init(|| now);
    static HOOKS: Once = Once::new();
    HOOKS.call_once(|| {
        handle_fatal_signals();
        leave_on_panic();
    });
    set_raw_mode(found);
}

/// Sets raw mode with one system call, which any confined thread may make.
fn set_raw_mode(found: &Termios) {
    RAW.store(true, Ordering::SeqCst);
    let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &raw_of(found));
}

/// The settings of raw mode.
fn raw_of(found: &Termios) -> Termios {
    let mut raw = found.clone();
    raw.make_raw();
    // Output modes stay, because volt-vmm's messages end in a newline without a carriage return.
    raw.output_modes = found.output_modes;
    raw
}

/// Resets the terminal if it is in raw mode. Async-signal-safe: an atomic swap and one ioctl.
pub(crate) fn leave_raw_mode() {
    if RAW.swap(false, Ordering::SeqCst)
        && let Some(found) = FOUND.get()
    {
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, found);
    }
}

/// Leaves raw mode while a panic's message is printed. After a panic of a thread other than the main one the
/// guest may go on, so the terminal returns to raw mode.
fn leave_on_panic() {
    let main = thread::current().id();
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        let was_raw = RAW.load(Ordering::SeqCst);
        leave_raw_mode();
        print(panic);
        if let Some(found) = FOUND.get().filter(|_| was_raw && thread::current().id() != main) {
            set_raw_mode(found);
        }
    }));
}

fn handle_fatal_signals() {
    let earlier = FATAL.map(|signal| {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: a null new action only queries. The kernel fills in `action`, and zeroes are valid too.
        unsafe {
            libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
            action.assume_init()
        }
    });
    let _ = EARLIER.set(earlier);
    for signal in FATAL {
        // SAFETY: zeroes are a valid sigaction (no flags, empty mask). The handler has the signature that
        // SA_SIGINFO asks for and calls async-signal-safe functions only.
        unsafe {
            let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
            action.sa_sigaction = on_fatal_signal as Handler as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(signal, &raw const action, ptr::null_mut());
        }
    }
}

/// Resets the terminal, then lets the earlier handler handle the signal.
extern "C" fn on_fatal_signal(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    leave_raw_mode();
    // SAFETY: the kernel passed `info`.
    if unsafe { fatal_signals::is_sent(info) } {
        fatal_signals::exit(signal);
    }
    let earlier = FATAL.iter().position(|fatal| *fatal == signal).zip(EARLIER.get());
    let earlier = earlier.map(|(index, earlier)| earlier[index]);
    let is_handler = |action: &libc::sigaction| {
        action.sa_flags & libc::SA_SIGINFO != 0 && action.sa_sigaction != libc::SIG_DFL
    };
    if let Some(action) = earlier.filter(is_handler) {
        // SAFETY: a handler that was installed with SA_SIGINFO has this signature, and gets what it would get
        // from the kernel.
        let handler: Handler = unsafe { std::mem::transmute(action.sa_sigaction) };
        handler(signal, info, context);
    } else {
        // SAFETY: the kernel passed `context`.
        unsafe { fatal_signals::repeat_with_default_action(signal, context) };
    }
}
