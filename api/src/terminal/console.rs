//! Passes standard input to the guest's serial console. The library writes the console's output
//! (`Console::stdout()`).
//!
//! Reads block, so a file, a pipe, a terminal and /dev/null all work. The end of the input ends the thread.
//! On a terminal, Ctrl-A introduces a key for volt-vmm; all other keys, Ctrl-C included, go to the guest.
//! Bytes of a file or a pipe reach the guest unchanged.

use std::io::{self, stdin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use volt_vmm::Vm;

use crate::failure::Failure;
use crate::messages::say;
use crate::terminal;
use crate::threads;

pub(super) mod escape;

use escape::{EscapeParser, Input};

const KEYS: &str = "\
Ctrl-A X       end the VM
Ctrl-A Ctrl-A  send Ctrl-A to the guest (also: Ctrl-A A)
Ctrl-A H       this list (also: Ctrl-A ?)";

/// Capacity for typed input that the guest has not read yet, in reads of up to 4 KiB.
const TYPED_AHEAD: usize = 64;

static ATTACHED: AtomicBool = AtomicBool::new(false);

/// The thread that reads standard input.
static READER: OnceLock<Thread> = OnceLock::new();

/// Starts to pass standard input to `vm`, in raw mode if it is a terminal.
///
/// # Errors
/// The host cannot start the thread.
pub(crate) fn attach(vm: &Arc<Vm>) -> Result<(), Failure> {
    let vm = Arc::clone(vm);
    let is_terminal = terminal::is_terminal();
    // Before raw mode: a process that is stopped as soon as it has that sets it again when it continues.
    ATTACHED.store(true, Ordering::SeqCst);
    if is_terminal {
        terminal::enter_raw_mode();
        say("volt-vmm: Ctrl-A X ends the VM, Ctrl-A H lists the keys");
    }
    let body = move || if is_terminal { pass_keys(&vm) } else { pass_bytes(&vm) };
    let reader = threads::spawn("input", "to read the console", body)?;
    let _ = READER.set(reader.thread().clone());
    Ok(())
}

/// Leaves raw mode for good: a process that is stopped and continues does not return to it.
pub(crate) fn leave() {
    ATTACHED.store(false, Ordering::SeqCst);
    terminal::leave_raw_mode();
}

/// Says whether [`attach`] was called, and [`leave`] not.
pub(crate) fn is_attached() -> bool {
    ATTACHED.load(Ordering::SeqCst)
}

/// Wakes a reader that waits for the foreground.
pub(crate) fn wake() {
    if let Some(reader) = READER.get() {
        reader.unpark();
    }
}

/// Passes the bytes of a file or pipe, no faster than the guest reads them.
fn pass_bytes(vm: &Vm) {
    let mut buffer = [0; 4096];
    while let Ok(bytes @ [_, ..]) = read(&mut buffer) {
        if vm.type_in(bytes).is_err() {
            return;
        }
    }
}

/// Passes the keys of a terminal. Another thread writes to the guest, so the escape keys work even if the
/// guest does not read.
fn pass_keys(vm: &Arc<Vm>) {
    let (typed, typing) = sync_channel::<Vec<u8>>(TYPED_AHEAD);
    let typist = Arc::clone(vm);
    let pass_on = move || while typing.recv().is_ok_and(|bytes| typist.type_in(&bytes).is_ok()) {};
    if threads::spawn("typist", "to type in the guest's console", pass_on).is_err() {
        return;
    }
    let mut parser = EscapeParser::default();
    let mut buffer = [0; 4096];
    while let Ok(bytes @ [_, ..]) = read(&mut buffer) {
        for input in parser.parse(bytes) {
            match input {
                Input::Guest(bytes) => {
                    if !send(&typed, bytes) {
                        return;
                    }
                }
                Input::ListKeys => say(format!("\n{KEYS}")),
                Input::EndVm => vm.stop(),
                // The parser leaves it to the guest: the VM has no other process.
                Input::Detach => {}
            }
        }
    }
}

/// Queues typed bytes. Returns false once the writing thread has ended. A full queue drops the bytes, as a
/// serial line does.
fn send(typed: &SyncSender<Vec<u8>>, bytes: Vec<u8>) -> bool {
    !matches!(typed.try_send(bytes), Err(TrySendError::Disconnected(_)))
}

/// Reads once, blocking. Returns an empty slice at the end of the input.
fn read(buffer: &mut [u8]) -> io::Result<&[u8]> {
    loop {
        match rustix::io::read(stdin(), &mut *buffer) {
            Ok(count) => return Ok(&buffer[..count]),
            Err(Errno::INTR) => {}
            // Another process shares this open file and made it non-blocking.
            Err(Errno::AGAIN) => {
                let input = stdin();
                poll(&mut [PollFd::new(&input, PollFlags::IN)], None)?;
            }
            // A background job gets EIO. SIGCONT unparks this thread when that changes, and the
            // timeout covers other changes.
            Err(Errno::IO) if terminal::is_terminal() && !terminal::in_foreground() => {
                while terminal::is_terminal() && !terminal::in_foreground() {
                    thread::park_timeout(Duration::from_secs(1));
                }
                terminal::enter_raw_mode();
            }
            Err(error) => return Err(error.into()),
        }
    }
}
