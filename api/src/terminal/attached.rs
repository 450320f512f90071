//! The terminal as a client of a VM's console: keys go to a socket, and the console's output comes from it.
//!
//! ```text
//!   standard input ──keys──> socket        Ctrl-A D leaves, Ctrl-A X ends the VM
//!   standard output <─────── socket        its end is the end of the VM
//! ```
//!
//! No write blocks: keys and signals count also while the reader of standard output stands still.
use std::io::{self, ErrorKind, Read, Write, stdin};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, getpid, kill_process};
use rustix::termios::tcgetattr;

use super::console::escape::{EscapeParser, Input};
use super::guardian::{Guardian, TerminalLock};
use super::signal_queue::SignalQueue;
use crate::failure::Failure;
use crate::messages::say;
use crate::terminal;

mod screen;

use screen::Screen;

const KEYS: &str = "\
Ctrl-A D       leave the VM, which goes on
Ctrl-A X       end the VM
Ctrl-A Ctrl-A  send Ctrl-A to the guest (also: Ctrl-A A)
Ctrl-A H       this list (also: Ctrl-A ?)";

/// Most bytes of input that wait for the VM. More is not read from a file or a pipe. More from a terminal is
/// dropped, because keys such as Ctrl-A D may follow.
const TYPED_AHEAD: usize = 64 << 10;
/// Time between two calls for [`Event::Tick`].
const TICK: Duration = Duration::from_millis(200);

/// An event for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Ctrl-A X.
    EndVm,
    /// A signal that asks this process to end.
    Signal(i32),
    /// Some time has passed.
    Tick,
}

/// How the client left the console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// The VM closed the console.
    Ended,
    /// Ctrl-A D.
    Detached,
    /// The caller wanted to.
    Stopped,
}

/// Connects this process's terminal, or its streams, with a console until one side leaves. `on_event` returns
/// false to leave. The process has one thread.
///
/// # Errors
/// The host refuses a descriptor or a process.
pub(crate) fn attach(
    console: &UnixStream,
    on_event: impl FnMut(Event) -> Result<bool, Failure>,
) -> Result<Left, Failure> {
    let failed = |source: io::Error| Failure::system("attach to the console", source);
    let signals = SignalQueue::block().map_err(failed)?;
    console.set_nonblocking(true).map_err(failed)?;
    let is_terminal = terminal::is_terminal();
    let mut guardian = None;
    let lock = is_terminal.then(TerminalLock::take);
    if let Some(lock) = &lock
        && let Ok(found) = tcgetattr(stdin())
    {
        guardian = Some(Guardian::start(&found, lock)?);
        terminal::enter_raw_mode();
        say("volt-vmm: Ctrl-A D leaves the VM, Ctrl-A X ends it, Ctrl-A H lists the keys");
    }
    let parser = is_terminal.then(EscapeParser::detaching);
    let (typed, screen) = (Vec::new(), Screen::open());
    let client =
        Client { console, signals, parser, typed, has_input: true, screen, has_ended: false, on_event };
    let left = client.run();
    terminal::leave_raw_mode();
    guardian.into_iter().for_each(Guardian::dismiss);
    left
}

struct Client<'a, F> {
    console: &'a UnixStream,
    signals: SignalQueue,
    /// Absent for a file or a pipe, whose bytes go to the guest unchanged.
    parser: Option<EscapeParser>,
    /// Input that the console has not taken.
    typed: Vec<u8>,
    has_input: bool,
    screen: Screen,
    /// Whether the console has ended. Its last output may not be printed yet.
    has_ended: bool,
    on_event: F,
}

/// Sources that are ready.
struct Ready {
    input: bool,
    console: bool,
    signals: bool,
}

impl<F: FnMut(Event) -> Result<bool, Failure>> Client<'_, F> {
    fn run(mut self) -> Result<Left, Failure> {
        loop {
            let ready = self.wait();
            if ready.signals && !self.take_signals()? {
                return Ok(Left::Stopped);
            }
            if !(self.on_event)(Event::Tick)? {
                return Ok(Left::Stopped);
            }
            if ready.console {
                self.read_console();
            }
            // The VM goes on without a reader, as it does without a terminal.
            self.screen.write().map_err(|error| Failure::system("print the console's output", error))?;
            if self.has_ended && self.screen.is_empty() {
                return Ok(Left::Ended);
            }
            if ready.input
                && let Some(left) = self.read()?
            {
                return Ok(left);
            }
            self.type_in();
        }
    }

    /// Waits for input, the console, the screen or a signal.
    fn wait(&self) -> Ready {
        let reads = self.has_input && (self.parser.is_some() || self.typed.len() < TYPED_AHEAD);
        let when = |condition, flags| if condition { flags } else { PollFlags::empty() };
        let input = stdin();
        let console =
            when(!self.screen.is_full(), PollFlags::IN) | when(!self.typed.is_empty(), PollFlags::OUT);
        // One that is not wanted now would be ready at its hangup again and again.
        let unwanted = PollFd::new(&self.signals, PollFlags::empty());
        let watch = |condition: bool, fd| if condition { fd } else { unwanted.clone() };
        let mut all = [
            watch(reads, PollFd::new(&input, PollFlags::IN)),
            watch(!self.has_ended && !console.is_empty(), PollFd::new(self.console, console)),
            watch(!self.screen.is_empty(), PollFd::new(&self.screen, PollFlags::OUT)),
            PollFd::new(&self.signals, PollFlags::IN),
        ];
        let limit = Timespec::try_from(TICK).ok();
        let is_ok = poll(&mut all, limit.as_ref()).is_ok();
        let [input, console, _, signals] = all.map(|polled| is_ok && !polled.revents().is_empty());
        Ready { input, console, signals }
    }

    /// Takes output of the console, unless too much waits for the screen.
    fn read_console(&mut self) {
        if self.screen.is_full() {
            return;
        }
        let mut buffer = [0; 16 << 10];
        match (&*self.console).read(&mut buffer) {
            Ok(0) => self.has_ended = true,
            Ok(count) => self.screen.add(&buffer[..count]),
            Err(error) if is_later(&error) => {}
            Err(_) => self.has_ended = true,
        }
    }

    /// Reads keys or bytes.
    fn read(&mut self) -> Result<Option<Left>, Failure> {
        let mut buffer = [0; 4096];
        let bytes = match rustix::io::read(stdin(), &mut buffer) {
            Ok(0) => {
                self.has_input = false;
                return Ok(None);
            }
            Ok(count) => &buffer[..count],
            Err(error) if is_later(&error.into()) => return Ok(None),
            // The terminal is gone, or another job's.
            Err(_) => {
                self.has_input = terminal::is_terminal() && !terminal::in_foreground();
                std::thread::sleep(TICK);
                return Ok(None);
            }
        };
        let Some(parser) = &mut self.parser else {
            self.typed.extend_from_slice(bytes);
            return Ok(None);
        };
        for input in parser.parse(bytes) {
            match input {
                Input::Guest(bytes) => {
                    let room = TYPED_AHEAD.saturating_sub(self.typed.len());
                    self.typed.extend_from_slice(&bytes[..bytes.len().min(room)]);
                }
                Input::ListKeys => say(format!("\n{KEYS}")),
                Input::Detach if self.has_ended => return Ok(Some(Left::Ended)),
                Input::Detach => return Ok(Some(Left::Detached)),
                Input::EndVm => {
                    if !(self.on_event)(Event::EndVm)? {
                        return Ok(Some(Left::Stopped));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Gives the console what it takes now.
    fn type_in(&mut self) {
        while !self.typed.is_empty() {
            match (&*self.console).write(&self.typed) {
                Ok(count) => drop(self.typed.drain(..count)),
                Err(error) if is_later(&error) => return,
                // The end of the console follows.
                Err(_) => self.typed.clear(),
            }
        }
        if !self.has_input && self.parser.is_none() {
            let _ = self.console.shutdown(std::net::Shutdown::Write);
        }
    }

    /// Handles signals. Returns false to leave.
    fn take_signals(&mut self) -> Result<bool, Failure> {
        for signal in self.signals.take() {
            match signal {
                libc::SIGTSTP => {
                    terminal::leave_raw_mode();
                    // SIGCONT continues this process.
                    let _ = kill_process(getpid(), Signal::STOP);
                }
                libc::SIGCONT => {
                    if self.parser.is_some() {
                        terminal::enter_raw_mode();
                    }
                }
                signal => {
                    // Without its console, the VM's last output may wait for a reader for ever.
                    if !(self.on_event)(Event::Signal(signal))? || self.has_ended {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(true)
    }
}

fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
