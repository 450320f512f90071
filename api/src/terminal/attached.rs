//! The terminal as a client of a VM's console, or of a command in a guest: keys go there, and output comes.
//!
//! ```text
//!   standard input ──keys──> remote        Ctrl-A D leaves, Ctrl-A X ends the VM
//!   standard output <─────── remote        its end is the end of the VM or the command
//!   standard error  <─────── remote        of commands without a terminal
//! ```
//!
//! No write blocks: keys and signals count also while the reader of standard output stands still.
use std::io::{self, ErrorKind, stdin};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, getpid, kill_process};
use rustix::stdio;
use rustix::termios::tcgetattr;

pub(crate) use super::console::escape::Keys;
use super::console::escape::{EscapeParser, Input};
use super::guardian::{Guardian, TerminalLock};
use super::signal_queue::SignalQueue;
use crate::failure::Failure;
use crate::messages::say;
use crate::terminal;

mod remote;
mod screen;

pub(crate) use remote::{Received, Remote};
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
/// Time between two questions whether the command has ended, while a reader stands still.
const LOOK: Duration = Duration::from_millis(300);
/// Time after a question without an answer. Keys have to wait for a second while one is asked.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// An event for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Ctrl-A X.
    EndVm,
    /// A signal that asks this process to end.
    Signal(i32),
    /// The terminal may have another size.
    Resized,
    /// Some time has passed.
    Tick,
}

/// How the client left the console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// The VM closed the console, or the command has ended.
    Ended,
    /// Ctrl-A D, or Ctrl-P Ctrl-Q.
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
    console.set_nonblocking(true).map_err(failed)?;
    connect(&mut &*console, terminal::is_terminal().then_some(Keys::ControlA), on_event)
}

/// As [`attach`], with any other end. With `keys`, the terminal passes each key at once, but for these.
///
/// # Errors
/// As [`attach`].
pub(crate) fn connect(
    remote: &mut impl Remote,
    keys: Option<Keys>,
    on_event: impl FnMut(Event) -> Result<bool, Failure>,
) -> Result<Left, Failure> {
    let failed = |source: io::Error| Failure::system("attach to the console", source);
    let signals = SignalQueue::block().map_err(failed)?;
    let mut guardian = None;
    let lock = keys.is_some().then(TerminalLock::take);
    if let Some(lock) = &lock
        && let Ok(found) = tcgetattr(stdin())
    {
        guardian = Some(Guardian::start(&found, lock)?);
        terminal::enter_raw_mode();
        if keys == Some(Keys::ControlA) {
            say("volt-vmm: Ctrl-A D leaves the VM, Ctrl-A X ends it, Ctrl-A H lists the keys");
        }
    }
    let parser = keys.map(EscapeParser::detaching);
    let screens = [Screen::open(stdio::stdout()), Screen::open(stdio::stderr())];
    let (has_input, has_ended) = (remote.input().is_some(), false);
    let (typed, rest) = (Vec::new(), Rest::default());
    let mut client = Client { remote, signals, parser, typed, has_input, screens, rest, has_ended, on_event };
    let left = client.run();
    // Before the client is dropped, which lets signals stop and end this process again.
    terminal::leave_raw_mode();
    guardian.into_iter().for_each(Guardian::dismiss);
    left
}

struct Client<'a, R, F> {
    remote: &'a mut R,
    signals: SignalQueue,
    /// Absent for a file or a pipe, whose bytes go to the guest unchanged.
    parser: Option<EscapeParser>,
    /// Input that the other end has not taken.
    typed: Vec<u8>,
    has_input: bool,
    /// Standard output and standard error.
    screens: [Screen; 2],
    rest: Rest,
    /// Whether the other end has ended. Its last output may not be printed yet.
    has_ended: bool,
    on_event: F,
}

/// The last output of a command whose reader stands still. A VM waits for it, but a few seconds only.
#[derive(Default)]
struct Rest {
    /// Whether the command has ended. The output that is on its way is then taken, though a screen is full.
    is_taken: bool,
    /// Before this, the other end is not asked again.
    next_look: Option<Instant>,
}

/// Sources that are ready.
struct Ready {
    input: bool,
    output: bool,
    signals: bool,
}

impl<R: Remote, F: FnMut(Event) -> Result<bool, Failure>> Client<'_, R, F> {
    fn run(&mut self) -> Result<Left, Failure> {
        // Output may have come with the beginning of the connection.
        self.receive()?;
        loop {
            let ready = self.wait();
            if ready.signals && !self.take_signals()? {
                return Ok(Left::Stopped);
            }
            if !(self.on_event)(Event::Tick)? {
                return Ok(Left::Stopped);
            }
            self.look_for_the_end();
            if ready.output {
                self.receive()?;
            }
            // The VM goes on without a reader, as it does without a terminal.
            let written = self.screens.iter_mut().try_for_each(Screen::write);
            written.map_err(|error| Failure::system("print the output", error))?;
            if self.has_ended && self.screens.iter().all(Screen::is_empty) {
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

    /// Waits for input, the other end, the screens or a signal.
    fn wait(&self) -> Ready {
        let reads = self.has_input && (self.parser.is_some() || self.typed.len() < TYPED_AHEAD);
        let stdin = stdin();
        let takes_input = self.remote.input().filter(|_| !self.typed.is_empty() || self.remote.is_sending());
        // One that is not wanted now would be ready at its hangup again and again.
        let unwanted = PollFd::new(&self.signals, PollFlags::empty());
        let watch = |condition: bool, fd| if condition { fd } else { unwanted.clone() };
        let [output, error] = &self.screens;
        let remote = self.remote.output();
        let mut all = [
            watch(reads, PollFd::new(&stdin, PollFlags::IN)),
            watch(!self.has_ended && !self.is_full(), PollFd::new(&remote, PollFlags::IN)),
            watch(!output.is_empty(), PollFd::new(output, PollFlags::OUT)),
            watch(!error.is_empty(), PollFd::new(error, PollFlags::OUT)),
            PollFd::new(&self.signals, PollFlags::IN),
            takes_input
                .as_ref()
                .filter(|_| !self.has_ended)
                .map_or(unwanted, |input| PollFd::new(input, PollFlags::OUT)),
        ];
        let limit = Timespec::try_from(TICK).ok();
        let is_ok = poll(&mut all, limit.as_ref()).is_ok();
        let [input, output, _, _, signals, _] = all.map(|polled| is_ok && !polled.revents().is_empty());
        Ready { input, output, signals }
    }

    fn is_full(&self) -> bool {
        let is_taken = self.rest.is_taken;
        self.screens.iter().any(|screen| if is_taken { screen.has_no_room() } else { screen.is_full() })
    }

    /// Takes the rest of the output if the command ends while a screen is full.
    fn look_for_the_end(&mut self) {
        if !self.screens.iter().any(Screen::is_full) {
            self.rest.is_taken = false;
        } else if !self.rest.is_taken && self.rest.next_look.is_none_or(|next| next <= Instant::now()) {
            let ended = self.remote.has_ended();
            self.rest.is_taken = ended == Some(true);
            let pause = if ended.is_some() { LOOK } else { LOOK_AGAIN };
            self.rest.next_look = Some(Instant::now() + pause);
        }
    }

    /// Takes output, unless too much waits for a screen.
    fn receive(&mut self) -> Result<(), Failure> {
        if self.is_full() {
            return Ok(());
        }
        let Received { output, error, is_at_end } = self.remote.receive()?;
        self.screens[0].add(&output);
        self.screens[1].add(&error);
        self.has_ended = is_at_end;
        Ok(())
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

    /// Gives the other end what it takes now.
    fn type_in(&mut self) {
        while !self.typed.is_empty() || self.remote.is_sending() {
            match self.remote.send(&self.typed) {
                Ok(count) => drop(self.typed.drain(..count)),
                Err(error) if is_later(&error) => return,
                // No more is read there. The end of the output follows, perhaps much later.
                Err(_) => {
                    self.typed.clear();
                    self.has_input &= self.parser.is_some();
                    break;
                }
            }
        }
        if !self.has_input && self.parser.is_none() {
            self.remote.end_input();
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
                libc::SIGWINCH => drop((self.on_event)(Event::Resized)?),
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

/// Whether a descriptor that does not block is to be tried again.
pub(super) fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
