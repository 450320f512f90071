//! The terminal on standard input: raw while the guest owns it, and always put back: on return, on a panic, on the
//! signals that end the process (`signals` sees to those) and on the fatal ones (SIGSEGV and its kind, here).
//!
//! ```text
//!            enter (foreground only)
//! as found <-------------------------> raw
//!            leave; panic; fatal signal; stopped
//! ```
#![allow(unsafe_code)]

pub(crate) mod console;

use std::io::{IsTerminal, stdin};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Once, OnceLock};
use std::{panic, ptr, thread};

use rustix::process::getpgrp;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr};

/// Signals that kill a program for its own faults.
const FATAL: [libc::c_int; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGABRT, libc::SIGFPE];

/// The settings found at the first `enter`.
static FOUND: OnceLock<Termios> = OnceLock::new();
/// Whether the terminal is in the mode that we set.
static RAW: AtomicBool = AtomicBool::new(false);
/// What handled each fatal signal before: the standard library's own stack overflow message, mostly.
static EARLIER: OnceLock<[libc::sigaction; 5]> = OnceLock::new();

/// Whether standard input is a terminal.
pub(crate) fn is_terminal() -> bool {
    stdin().is_terminal()
}

/// Whether this process may use the terminal now: a background job must leave it to the shell's foreground one.
pub(crate) fn in_foreground() -> bool {
    tcgetpgrp(stdin()).is_ok_and(|foreground| foreground == getpgrp())
}

/// Puts the terminal in raw mode. Nothing happens without a terminal, or from the background.
pub(crate) fn enter() {
    if !in_foreground() {
        // Whoever is in the foreground has set the terminal as it needs it.
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
    let mut raw = found.clone();
    raw.make_raw();
    // Output stays as it was: our own messages end in a plain newline.
    raw.output_modes = found.output_modes;
    RAW.store(true, Ordering::SeqCst);
    let _ = tcsetattr(stdin(), OptionalActions::Now, &raw);
}

/// Puts the terminal back as it was found, if it is raw. Async-signal-safe: an atomic swap and one ioctl.
pub(crate) fn leave() {
    if RAW.swap(false, Ordering::SeqCst)
        && let Some(found) = FOUND.get()
    {
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, found);
    }
}

/// A panic's message is printed on a sane terminal. Only a panic of the main thread ends the process for certain; after
/// any other the guest may go on and keeps its raw terminal.
fn leave_on_panic() {
    let main = thread::current().id();
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        let was_raw = RAW.load(Ordering::SeqCst);
        leave();
        print(panic);
        if was_raw && thread::current().id() != main {
            enter();
        }
    }));
}

fn handle_fatal_signals() {
    let earlier = FATAL.map(|signal| {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: a null new action only asks; the kernel fills in `action`, which is valid as zeroes too.
        unsafe {
            libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
            action.assume_init()
        }
    });
    let _ = EARLIER.set(earlier);
    for signal in FATAL {
        // SAFETY: zeroes are a valid sigaction (no flags, empty mask); the handler has the signature that SA_SIGINFO
        // asks for and calls async-signal-safe functions only.
        unsafe {
            let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
            action.sa_sigaction = on_fatal_signal as extern "C" fn(_, _, _) as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(signal, &raw const action, ptr::null_mut());
        }
    }
}

/// Puts the terminal back, then lets the signal do what it would have done without us.
extern "C" fn on_fatal_signal(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    leave();
    let earlier = FATAL.iter().position(|fatal| *fatal == signal).zip(EARLIER.get());
    // SAFETY: `info` is what the kernel gave this handler, the earlier action one that was installed before, and zeroes
    // are the default action. A fault of the CPU's happens again as soon as this returns, and meets the earlier action;
    // a signal that was sent does not, so it is sent once more, pending until this returns, and meets the default.
    unsafe {
        let sent = (*info).si_code <= 0;
        let action = match earlier {
            Some((index, earlier)) if !sent => earlier[index],
            _ => MaybeUninit::zeroed().assume_init(),
        };
        libc::sigaction(signal, &raw const action, ptr::null_mut());
        if sent {
            libc::raise(signal);
        }
    }
}
