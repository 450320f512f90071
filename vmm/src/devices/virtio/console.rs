//! A console besides the serial port (virtio 1.2, section 5.3): one port, at a unix socket of the host, for
//! one client at a time.
//!
//! ```text
//!  guest ──transmit──> backlog, the last 64 KiB ──> a client that reads
//!  guest <──receive── client, while the guest has buffers
//! ```
//!
//! The guest never waits for a client: output that is not read in time is dropped, the oldest first.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::SendFlags;

use super::chain::Buffers;
use super::listener::Listener;
use super::watch::Watch;
use super::{ChainOutcome, DeviceFailed, DeviceIo, DeviceKind, NextTurn, VirtioDevice, WakeReason};
use crate::config::devices::ConsoleConfig;
use crate::console::AtLine;
use crate::counters::device::{DeviceOperations, OperationKind};
use crate::error::{Error, Result};
use crate::persist::{NoState, Persist};

const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;
/// Operations as the counters name them, with the numbers of their queues.
const OPERATIONS: &[OperationKind] = &[OperationKind::new("receive"), OperationKind::new("transmit")];
/// Maximum of kept output, in bytes.
const BACKLOG: usize = 64 << 10;
/// Maximum taken from one chain: a guest may describe 4 GiB of output with the same few bytes.
const CHAIN: usize = 1 << 20;
/// Maximum copied at once.
const PIECE: usize = 4096;
/// Maximum of connections accepted in one turn.
const CLIENTS: usize = 16;
/// Pause of the listener after the host had no descriptor for a connection.
const REST: Duration = Duration::from_secs(1);

/// The device.
#[derive(Debug)]
pub struct VirtioConsole {
    // Glue.
    listener: Listener,
    /// An epoll inside the worker's. Its set of events changes while the device works.
    ready: OwnedFd,
    /// Time until which no connection is accepted.
    rest: Option<Instant>,
    client: Option<ConsoleClient>,
    output: PendingOutput,
}

/// The connected client.
#[derive(Debug)]
struct ConsoleClient {
    stream: UnixStream,
    /// Events that the device waits for. Without any, the client is not in the epoll, where a hangup would
    /// wake the worker again and again.
    watched: EventFlags,
    /// The client has shut down its sending side, and may still read.
    mute: bool,
}

impl VirtioConsole {
    /// Listens at the configured socket.
    ///
    /// # Errors
    /// Another process listens there, or the host refuses.
    pub fn open(config: &ConsoleConfig) -> Result<Self> {
        let ConsoleConfig { socket } = config;
        let failed = |errno: Errno| Error::file("watch", socket, errno);
        let listener = Listener::open("listen at", socket)?;
        let ready = epoll::create(CreateFlags::CLOEXEC).map_err(failed)?;
        epoll::add(&ready, &listener, EventData::new_u64(0), EventFlags::IN).map_err(failed)?;
        Ok(Self { listener, ready, rest: None, client: None, output: PendingOutput::default() })
    }

    /// Removes the socket's file, because the guest has ended.
    pub fn remove_socket(&self) {
        self.listener.remove_file();
    }

    /// Calls `act` when the guest has written a whole line.
    pub fn at_line(&mut self, act: impl FnOnce() + Send + 'static) {
        self.output.at_line.set(act);
    }

    /// Accepts a connection, if there is no client.
    fn admit(&mut self) -> NextTurn {
        if let Some(until) = self.rest {
            if until > Instant::now() {
                return NextTurn::At(until);
            }
            self.watch_listener(EventFlags::IN);
            self.rest = None;
        }
        for _ in 0..CLIENTS {
            match self.listener.accept() {
                // A second client is closed at once.
                Ok(Some(_)) if self.client.as_ref().is_some_and(|client| !client.is_gone()) => {}
                Ok(Some(stream)) => {
                    self.client = Some(ConsoleClient { stream, watched: EventFlags::empty(), mute: false });
                }
                Ok(None) => return NextTurn::Wait,
                Err(error) => {
                    log::warn!("console: cannot accept a client: {error}");
                    self.watch_listener(EventFlags::empty());
                    let until = Instant::now() + REST;
                    self.rest = Some(until);
                    return NextTurn::At(until);
                }
            }
        }
        NextTurn::Again
    }

    fn watch_listener(&self, what: EventFlags) {
        // The listener was added when it was opened, and a change needs no resources.
        let _ = epoll::modify(&self.ready, &self.listener, EventData::new_u64(0), what);
    }

    /// Moves the client's input into the guest's buffers. The second value says whether buffers wait for
    /// input.
    fn receive(&mut self, io: &mut DeviceIo<'_>) -> std::result::Result<(NextTurn, bool), DeviceFailed> {
        let (most, mut waiting) = (io.queues[RECEIVE].size().into(), false);
        let next = io.each_chain(RECEIVE, most, |mut chain| {
            let kept = Ok(ChainOutcome::Kept(NextTurn::Wait));
            let Some(client) = self.client.as_mut().filter(|client| !client.mute) else { return kept };
            let mut bytes = [0; PIECE];
            let room = chain.writable.len().min(PIECE);
            if room == 0 {
                return Ok(ChainOutcome::Done(0));
            }
            match retry_on_intr(|| rustix::io::read(&client.stream, &mut bytes[..room])) {
                Ok(0) => {
                    client.mute = true;
                    if client.is_gone() {
                        self.client = None;
                    }
                    kept
                }
                Ok(got) => Ok(ChainOutcome::Done(chain.writable.write(&bytes[..got]))),
                Err(Errno::AGAIN) => {
                    waiting = true;
                    kept
                }
                Err(_) => {
                    self.client = None;
                    kept
                }
            }
        })?;
        io.interrupt_for(RECEIVE)?;
        Ok((next, waiting))
    }

    /// Waits for input while the guest has buffers, and for room while there is output.
    fn watch_client(&mut self, input: bool) {
        let Some(client) = &mut self.client else { return };
        let mut wanted = EventFlags::empty();
        wanted.set(EventFlags::IN, input);
        wanted.set(EventFlags::OUT, !self.output.backlog.is_empty());
        let (before, data) = (client.watched, EventData::new_u64(1));
        let done = match (before.is_empty(), wanted.is_empty()) {
            _ if before == wanted => Ok(()),
            (true, _) => epoll::add(&self.ready, &client.stream, data, wanted),
            (false, true) => epoll::delete(&self.ready, &client.stream),
            (false, false) => epoll::modify(&self.ready, &client.stream, data, wanted),
        };
        client.watched = wanted;
        if let Err(errno) = done {
            log::warn!("console: cannot watch the client, so it is disconnected: {errno}");
            self.client = None;
        }
    }
}

impl ConsoleClient {
    /// Whether the client has closed its end. Its input may still be unread.
    fn is_gone(&self) -> bool {
        let mut end = [PollFd::new(&self.stream, PollFlags::empty())];
        let polled = poll(&mut end, Some(&Timespec::default()));
        polled.is_ok() && end[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }
}

/// The guest's output that the client has not read.
#[derive(Debug, Default)]
struct PendingOutput {
    backlog: VecDeque<u8>,
    /// Called at the end of the next line.
    at_line: AtLine,
}

impl PendingOutput {
    /// Takes the output of a chain, and sends as much as the client reads.
    fn take(&mut self, said: &mut Buffers<'_>, client: &mut Option<ConsoleClient>) {
        let beyond = said.len().saturating_sub(CHAIN);
        drop(said.take(beyond));
        let mut bytes = [0; PIECE];
        loop {
            let piece = said.read(&mut bytes);
            if piece == 0 {
                return;
            }
            self.at_line.written(&bytes[..piece]);
            let excess = (self.backlog.len() + piece).saturating_sub(BACKLOG);
            self.backlog.drain(..excess);
            self.backlog.extend(&bytes[..piece]);
            self.send(client);
        }
    }

    fn send(&mut self, to: &mut Option<ConsoleClient>) {
        while let (Some(client), false) = (to.as_ref(), self.backlog.is_empty()) {
            let (front, _) = self.backlog.as_slices();
            match rustix::net::send(&client.stream, front, SendFlags::NOSIGNAL) {
                Ok(sent) => drop(self.backlog.drain(..sent)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => *to = None,
            }
        }
    }
}

impl VirtioDevice for VirtioConsole {
    fn kind(&self) -> DeviceKind {
        DeviceKind { id: 3, queues: &[64, 64] }
    }

    fn operations(&self) -> DeviceOperations {
        DeviceOperations { operations: OPERATIONS, queues: None }
    }

    fn begin(&mut self, _: &mut DeviceIo<'_>, watch: &Watch) -> std::result::Result<(), DeviceFailed> {
        watch
            .add(&self.ready, 0, EventFlags::IN)
            .map_err(|_| DeviceFailed("the console's socket cannot be watched"))
    }

    fn work(&mut self, _: WakeReason, io: &mut DeviceIo<'_>) -> std::result::Result<NextTurn, DeviceFailed> {
        let admitted = self.admit();
        let Self { output, client, .. } = self;
        output.send(client);
        let said = io.serve(TRANSMIT, |mut chain| {
            output.take(&mut chain.readable, client);
            Ok(0)
        })?;
        let (heard, input) = self.receive(io)?;
        self.watch_client(input);
        Ok(admitted.sooner(said).sooner(heard))
    }
}

impl Persist for VirtioConsole {
    type State = NoState;

    fn save(&self) -> Result<NoState> {
        let Self { listener: _, ready: _, rest: _, client: _, output: _ } = self;
        Ok(NoState {})
    }

    fn restore(&mut self, _: &NoState) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
#[path = "console_tests.rs"]
mod tests;
