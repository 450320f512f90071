//! The guest's serial console on standard input. (Standard output is the library's: `Console::stdout()`.)
//!
//! Reads block, so a file, a pipe, a terminal and /dev/null all work, and the end of the input ends the thread. On a
//! terminal Ctrl-A introduces a key for volt-vmm; everything else, Ctrl-C too, goes to the guest. The bytes of a file or a
//! pipe go through as they are.

use std::io::{self, stdin};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use volt_vmm::Vm;

use crate::failure::Failure;
use crate::terminal;

mod escape;

use escape::{Key, Keys};

const KEYS: &str = "\
Ctrl-A X       end the VM
Ctrl-A Ctrl-A  send Ctrl-A to the guest (also: Ctrl-A A)
Ctrl-A H       this list (also: Ctrl-A ?)";

/// What has been typed and not yet been taken by the guest: this many reads of up to 4 KiB each.
const TYPED_AHEAD: usize = 64;

/// The thread that reads standard input.
static READER: OnceLock<Thread> = OnceLock::new();

/// Starts passing standard input on to `vm`, in raw mode if it is a terminal.
///
/// # Errors
/// The host refuses a thread.
pub(crate) fn attach(vm: &Arc<Vm>) -> Result<(), Failure> {
    let vm = Arc::clone(vm);
    let is_terminal = terminal::is_terminal();
    if is_terminal {
        terminal::enter();
        eprintln!("volt-vmm: Ctrl-A X ends the VM, Ctrl-A H lists the keys");
    }
    let reader = spawn("volt-input", move || if is_terminal { pass_keys(&vm) } else { pass_bytes(&vm) })?;
    let _ = READER.set(reader);
    Ok(())
}

/// Whether [`attach`] was called.
pub(crate) fn is_attached() -> bool {
    READER.get().is_some()
}

/// Makes the reader try again after it was kept from the terminal.
pub(crate) fn wake() {
    if let Some(reader) = READER.get() {
        reader.unpark();
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<Thread, Failure> {
    let thread = thread::Builder::new().name(name.into()).spawn(body);
    let thread =
        thread.map_err(|source| Failure::system("start the thread that reads the console", source))?;
    Ok(thread.thread().clone())
}

/// A file or pipe: every byte as it is, no faster than the guest takes them.
fn pass_bytes(vm: &Vm) {
    let mut buffer = [0; 4096];
    while let Ok(bytes @ [_, ..]) = read(&mut buffer) {
        if vm.type_in(bytes).is_err() {
            return;
        }
    }
}

/// A terminal: its escape keys must work even when the guest takes nothing, so another thread does the typing.
fn pass_keys(vm: &Arc<Vm>) {
    let (typed, typing) = sync_channel::<Vec<u8>>(TYPED_AHEAD);
    let typist = Arc::clone(vm);
    let started =
        spawn(
            "volt-typist",
            move || {
                while typing.recv().is_ok_and(|bytes| typist.type_in(&bytes).is_ok()) {}
            },
        );
    if started.is_err() {
        return;
    }
    let mut keys = Keys::default();
    let mut buffer = [0; 4096];
    while let Ok(bytes @ [_, ..]) = read(&mut buffer) {
        for key in keys.parse(bytes) {
            match key {
                Key::Typed(bytes) => {
                    if !send(&typed, bytes) {
                        return;
                    }
                }
                Key::Help => eprintln!("\n{KEYS}"),
                Key::End => vm.stop(),
            }
        }
    }
}

/// False once nobody types any more. What a stuck guest leaves no room for is lost, as on any serial line.
fn send(typed: &SyncSender<Vec<u8>>, bytes: Vec<u8>) -> bool {
    !matches!(typed.try_send(bytes), Err(TrySendError::Disconnected(_)))
}

/// One blocking read; empty at the end of the input.
fn read(buffer: &mut [u8]) -> io::Result<&[u8]> {
    loop {
        match rustix::io::read(stdin(), &mut *buffer) {
            Ok(count) => return Ok(&buffer[..count]),
            Err(Errno::INTR) => {}
            // Someone shares this descriptor with us and made it non-blocking.
            Err(Errno::AGAIN) => {
                let input = stdin();
                poll(&mut [PollFd::new(&input, PollFlags::IN)], None)?;
            }
            // A background job cannot read. SIGCONT tells when that changes, or a look now and then.
            Err(Errno::IO) if terminal::is_terminal() && !terminal::in_foreground() => {
                while terminal::is_terminal() && !terminal::in_foreground() {
                    thread::park_timeout(Duration::from_secs(1));
                }
                terminal::enter();
            }
            Err(error) => return Err(error.into()),
        }
    }
}
