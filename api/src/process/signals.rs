//! Signals, waited for instead of handled: blocked before any thread starts, and taken by one thread.
//!
//! SIGINT, SIGTERM, SIGHUP and SIGQUIT end the VM and with it the process, with status 128+N. The disks get all
//! the time that they need to take what the guest wrote: on storage that hangs (NFS without its server) a single
//! signal never ends the process. A second signal ends it at once, and so does an ending that does not come about
//! within 3 s while no disk has a request under way. Data that the disks have not taken stays in the host's page
//! cache then, and is lost if the host crashes.
//!
//! SIGTSTP and SIGCONT keep the terminal right. SIGTTIN and SIGTTOU stay blocked: a background job then gets an
//! error instead of being stopped. The library's own kick signal (SIGRTMIN) is not touched.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};
use std::{ptr, thread};

use crate::failure::Failure;
use crate::process::fork::children;
use crate::process::vm_slot::Slot;
use crate::terminal;
use crate::terminal::console;

const ENDING: [libc::c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];
/// A fork's child has ended.
const CHILD: [libc::c_int; 1] = [libc::SIGCHLD];
const JOB_CONTROL: [libc::c_int; 2] = [libc::SIGTSTP, libc::SIGCONT];
const BLOCKED_ONLY: [libc::c_int; 2] = [libc::SIGTTIN, libc::SIGTTOU];

/// How long the guest may take to end once it was told to.
const TO_END: Duration = Duration::from_secs(3);
/// How long an API call in progress (a snapshot being written) may then hold up the exit.
const TO_FINISH: Duration = Duration::from_secs(30);

static ENDED_BY: AtomicI32 = AtomicI32::new(0);
static VM_ENDED: AtomicBool = AtomicBool::new(false);

/// The signal that asked for the end, 0 for none.
pub(crate) fn ended_by() -> i32 {
    ENDED_BY.load(Ordering::SeqCst)
}

/// Says that the VM has ended, so that what is left is finishing API calls.
pub(crate) fn vm_has_ended() {
    VM_ENDED.store(true, Ordering::SeqCst);
}

/// Blocks what [`watch`] waits for, in this thread and those it starts. One system call.
pub(crate) fn block() {
    let set = set_of(ENDING.iter().chain(&JOB_CONTROL).chain(&CHILD).chain(&BLOCKED_ONLY));
    // SAFETY: `set` is initialised; the old mask is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut()) };
}

/// Starts the thread that takes the signals. `clean_up` is called, in place of an orderly end, before the process is
/// ended at once.
///
/// # Errors
/// The host refuses the thread.
pub(crate) fn watch(slot: Arc<Slot>, clean_up: impl Fn() + Send + 'static) -> Result<(), Failure> {
    thread::Builder::new()
        .name("volt-signals".into())
        .spawn(move || take_signals(&slot, &clean_up))
        .map(drop)
        .map_err(|source| Failure::system("start the thread that takes signals", source))
}

fn take_signals(slot: &Arc<Slot>, clean_up: &dyn Fn()) {
    // Whoever started us with a signal ignored (nohup, a shell's background job) means it.
    let set = set_of(ENDING.iter().filter(|signal| !is_ignored(**signal)).chain(&JOB_CONTROL).chain(&CHILD));
    loop {
        match next(&set, Duration::from_secs(3600)) {
            Some(libc::SIGCONT) => continued(),
            Some(libc::SIGCHLD) => children::reap(),
            Some(libc::SIGTSTP) => {
                terminal::leave();
                // SAFETY: a plain system call; it returns once the process has been continued.
                unsafe { libc::raise(libc::SIGSTOP) };
            }
            Some(signal) => end(signal, &set, slot, clean_up),
            None => {}
        }
    }
}

/// Back from a stop, or moved between background and foreground. The shell may have changed the terminal meanwhile.
fn continued() {
    if console::is_attached() {
        terminal::enter();
        console::wake();
    }
}

/// Asks for the orderly end and enforces it.
fn end(signal: libc::c_int, set: &libc::sigset_t, slot: &Arc<Slot>, clean_up: &dyn Fn()) {
    ENDED_BY.store(signal, Ordering::SeqCst);
    let closing = Arc::clone(slot);
    // In a thread of its own: a vCPU may be blocked where nothing frees it.
    let _ = thread::Builder::new().name("volt-end".into()).spawn(move || closing.close());
    let mut asked = Instant::now();
    loop {
        if slot.peek().is_some_and(|vm| vm.is_settling()) {
            asked = Instant::now();
        }
        let limit = if VM_ENDED.load(Ordering::SeqCst) { TO_END + TO_FINISH } else { TO_END };
        let again = next(set, Duration::from_millis(50));
        if again.is_some_and(|signal| ENDING.contains(&signal)) || asked.elapsed() > limit {
            terminal::leave();
            clean_up();
            // SAFETY: ends the process without running exit handlers, which may wait for what is stuck.
            unsafe { libc::_exit(128 + signal) };
        }
    }
}

fn next(set: &libc::sigset_t, within: Duration) -> Option<libc::c_int> {
    let timeout =
        libc::timespec { tv_sec: within.as_secs().cast_signed(), tv_nsec: within.subsec_nanos().into() };
    // SAFETY: `set` and `timeout` are initialised, and the information about the signal is not asked for.
    let signal = unsafe { libc::sigtimedwait(set, ptr::null_mut(), &raw const timeout) };
    (signal > 0).then_some(signal)
}

fn set_of<'a>(signals: impl Iterator<Item = &'a libc::c_int>) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set before anything else looks at it; the numbers are valid signals.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        set.assume_init()
    }
}

fn is_ignored(signal: libc::c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null new action only asks; zeroes are a valid sigaction, should the call fail.
    let action = unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == libc::SIG_IGN
}
