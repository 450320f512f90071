//! Signals: blocked before any thread starts, then received by one thread with sigtimedwait(2).
//!
//! SIGINT, SIGTERM, SIGHUP and SIGQUIT end the VM and then the process, with status 128+N. The disks may take
//! any time to complete their writes: on storage that hangs (NFS without its server), one signal never ends
//! the process. A second signal ends it at once. The process also ends at once if the VM has not ended within
//! 3 s while no disk has a request in flight. Data that the disks have not written then stays in the host's
//! page cache, and is lost if the host crashes.
//!
//! SIGTSTP and SIGCONT switch the terminal's mode. SIGTTIN and SIGTTOU stay blocked, so a background job gets
//! an error instead of a stop. The library's kick signal (SIGRTMIN) keeps its handler.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use volt_vmm::internal::isolation;

use crate::failure::Failure;
use crate::process::fork::children;
use crate::process::vm_slot::Slot;
use crate::terminal;
use crate::terminal::console;
use crate::terminal::signal_queue::is_ignored;
use crate::threads;

const ENDING: [libc::c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];
/// Sent when a fork's child ends.
const CHILD: [libc::c_int; 1] = [libc::SIGCHLD];
const JOB_CONTROL: [libc::c_int; 2] = [libc::SIGTSTP, libc::SIGCONT];
const BLOCKED_ONLY: [libc::c_int; 2] = [libc::SIGTTIN, libc::SIGTTOU];

/// Time for the VM to end after a signal, not counting disk requests in flight.
const TO_END: Duration = Duration::from_secs(3);
/// Time for the removal of files at an end at once: a file system that hangs may never remove them.
const TO_CLEAN_UP: Duration = Duration::from_secs(1);
/// Additional time for API calls in progress, such as a snapshot, after the VM's end.
const TO_FINISH: Duration = Duration::from_secs(30);

/// Removes the files of the process that its end leaves.
type CleanUp = Arc<dyn Fn() + Send + Sync>;

static ENDED_BY: AtomicI32 = AtomicI32::new(0);
static VM_ENDED: AtomicBool = AtomicBool::new(false);

/// Returns the signal that asked for the end, or 0.
pub(crate) fn ended_by() -> i32 {
    ENDED_BY.load(Ordering::SeqCst)
}

/// Notes that the VM has ended, which grants the API calls in progress [`TO_FINISH`].
pub(crate) fn vm_has_ended() {
    VM_ENDED.store(true, Ordering::SeqCst);
}

/// Blocks the signals of [`watch`] in this thread and in those that it starts, with one system call.
pub(crate) fn block() {
    let set = set_of(ENDING.iter().chain(&JOB_CONTROL).chain(&CHILD).chain(&BLOCKED_ONLY));
    // SAFETY: `set` is initialized; a null pointer for the old mask is allowed.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut()) };
}

/// Starts the thread that receives the signals. It calls `clean_up` before it ends the process at once.
///
/// # Errors
/// The host cannot start the thread.
pub(crate) fn watch(slot: Arc<Slot>, clean_up: impl Fn() + Send + Sync + 'static) -> Result<(), Failure> {
    let clean_up: CleanUp = Arc::new(clean_up);
    threads::spawn("signals", "to receive signals", move || receive_signals(&slot, &clean_up)).map(drop)
}

fn receive_signals(slot: &Arc<Slot>, clean_up: &CleanUp) {
    let set = set_of(ENDING.iter().filter(|signal| !is_ignored(**signal)).chain(&JOB_CONTROL).chain(&CHILD));
    loop {
        match next(&set, Duration::from_secs(3600)) {
            Some(libc::SIGCONT) => continued(),
            Some(libc::SIGCHLD) => children::reap(),
            Some(libc::SIGTSTP) => {
                terminal::leave_raw_mode();
                let _ = isolation::stop();
            }
            Some(signal) => end(signal, &set, slot, clean_up),
            None => {}
        }
    }
}

/// Sets the terminal's mode after SIGCONT, because the shell may have changed it meanwhile.
fn continued() {
    if console::is_attached() {
        terminal::enter_raw_mode();
        console::wake();
    }
}

/// Ends the VM, or the process at once when a second signal comes or the time limit has passed.
fn end(signal: libc::c_int, set: &libc::sigset_t, slot: &Arc<Slot>, clean_up: &CleanUp) {
    ENDED_BY.store(signal, Ordering::SeqCst);
    let closing = Arc::clone(slot);
    // In its own thread, because a vCPU may be blocked indefinitely.
    let _ = threads::spawn("end", "to end the VM", move || closing.close());
    let mut asked = Instant::now();
    loop {
        if slot.peek().is_some_and(|vm| vm.is_settling()) {
            asked = Instant::now();
        }
        let limit = if VM_ENDED.load(Ordering::SeqCst) { TO_END + TO_FINISH } else { TO_END };
        let again = next(set, Duration::from_millis(50));
        if again.is_some_and(|signal| ENDING.contains(&signal)) || asked.elapsed() > limit {
            terminal::leave_raw_mode();
            clean_up_for_a_while(clean_up);
            // SAFETY: runs no exit handlers, which might wait for a blocked thread.
            unsafe { libc::_exit(128 + signal) };
        }
    }
}

/// Removes files, and leaves them if that takes too long, which takes a thread.
fn clean_up_for_a_while(clean_up: &CleanUp) {
    let (done, wait) = mpsc::channel();
    let theirs = Arc::clone(clean_up);
    let started = threads::spawn("clean-up", "to remove files", move || {
        theirs();
        let _ = done.send(());
    });
    match started {
        Ok(_) => drop(wait.recv_timeout(TO_CLEAN_UP)),
        Err(_) => clean_up(),
    }
}

fn next(set: &libc::sigset_t, within: Duration) -> Option<libc::c_int> {
    let timeout =
        libc::timespec { tv_sec: within.as_secs().cast_signed(), tv_nsec: within.subsec_nanos().into() };
    // SAFETY: `set` and `timeout` are initialized; a null siginfo pointer is allowed.
    let signal = unsafe { libc::sigtimedwait(set, ptr::null_mut(), &raw const timeout) };
    (signal > 0).then_some(signal)
}

fn set_of<'a>(signals: impl Iterator<Item = &'a libc::c_int>) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initializes the set before its first use; the numbers are valid signals.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        set.assume_init()
    }
}
