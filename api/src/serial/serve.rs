//! The thread that serves a serial port: one loop around poll(2).

use std::io::{self, ErrorKind, Read};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};

use super::backlog::Backlog;
use super::log::SerialLog;
use super::pending::Shared;
use crate::failure::Failure;
use crate::threads;

/// Most clients at once.
pub(crate) const CLIENTS: usize = 16;
/// The log gets a line that has not ended after this time.
const LINE: Duration = Duration::from_millis(100);
/// Time for clients to read the last output.
const GOODBYE: Duration = Duration::from_secs(1);
/// Time between two attempts to pass on input that the guest does not take.
const RETRY: Duration = Duration::from_millis(20);
/// Time in which output gathers: a guest writes byte by byte, and each turn costs the price of many bytes.
const GATHER: Duration = Duration::from_millis(1);
/// Time between two attempts to accept a client that the host has no descriptor for.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// Reads of input that wait for the guest.
const TYPED_AHEAD: usize = 16;

/// The parts of the thread.
#[derive(Debug)]
pub(super) struct Served {
    shared: Arc<Shared>,
    log: SerialLog,
    listener: UnixListener,
    clients: Vec<SerialClient>,
    /// The next attempt to accept a client, after one that failed. Until then the waiting client, for which
    /// the listener stays ready, does not wake the thread.
    accepts_at: Option<Instant>,
}

#[derive(Debug)]
struct SerialClient {
    stream: UnixStream,
    backlog: Backlog,
    /// Input that the guest has not taken. Until it does, the client is not read.
    input: Vec<u8>,
    /// It sends no more input, and may still read.
    is_mute: bool,
    is_gone: bool,
}

impl SerialClient {
    fn new(stream: UnixStream) -> Self {
        Self { stream, backlog: Backlog::default(), input: Vec::new(), is_mute: false, is_gone: false }
    }

    fn events(&self) -> PollFlags {
        let reads = !self.is_mute && self.input.is_empty();
        let read = if reads { PollFlags::IN } else { PollFlags::empty() };
        read | if self.backlog.is_empty() { PollFlags::empty() } else { PollFlags::OUT }
    }

    fn read(&mut self, found: PollFlags) {
        if found.contains(PollFlags::IN) && self.events().contains(PollFlags::IN) {
            let mut buffer = [0; 4096];
            match (&self.stream).read(&mut buffer) {
                Ok(0) => self.is_mute = true,
                Ok(count) => self.input.extend_from_slice(&buffer[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(_) => self.is_gone = true,
            }
        } else if found.intersects(PollFlags::HUP | PollFlags::ERR) {
            self.is_gone = true;
        }
    }

    /// Queues the input for the guest, if there is room.
    fn type_in(&mut self, typist: &SyncSender<Vec<u8>>) {
        if self.input.is_empty() {
            return;
        }
        if let Err(TrySendError::Full(input)) = typist.try_send(std::mem::take(&mut self.input)) {
            self.input = input;
        }
    }
}

impl Served {
    pub(super) fn new(
        shared: Arc<Shared>,
        log: SerialLog,
        listener: UnixListener,
        first: Option<UnixStream>,
    ) -> io::Result<Self> {
        first.iter().try_for_each(|client| client.set_nonblocking(true))?;
        let clients = first.into_iter().map(SerialClient::new).collect();
        Ok(Self { shared, log, listener, clients, accepts_at: None })
    }

    /// Passes output to the log and to all clients.
    fn pass(&mut self, output: &[u8]) {
        if !output.is_empty() {
            self.log.add(output, SystemTime::now());
            self.clients.iter_mut().for_each(|client| client.backlog.push(output));
        }
    }

    fn write_backlogs(&mut self) {
        for client in &mut self.clients {
            client.is_gone |= client.backlog.write_to(&client.stream).is_err();
        }
        self.clients.retain(|client| !client.is_gone);
    }

    fn admit(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        self.accepts_at = None;
        match accept_with(&self.listener, flags) {
            Ok(stream) if self.clients.len() < CLIENTS => {
                self.clients.push(SerialClient::new(stream.into()));
            }
            Ok(_) | Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
            // Probably out of descriptors: others may be closed soon.
            Err(_) => self.accepts_at = Some(Instant::now() + ACCEPT_AGAIN),
        }
    }

    /// Time until the next attempt to accept, after one that failed.
    fn rests(&self) -> Option<Duration> {
        self.accepts_at.map(|at| at.saturating_duration_since(Instant::now()))
    }
}

/// Starts the thread that types input into the guest. It may wait for the guest.
///
/// # Errors
/// The host refuses the thread.
pub(super) fn typist(
    type_in: impl Fn(&[u8]) -> bool + Send + 'static,
) -> Result<SyncSender<Vec<u8>>, Failure> {
    let (typist, typed) = sync_channel::<Vec<u8>>(TYPED_AHEAD);
    let body = move || while typed.recv().is_ok_and(|bytes| type_in(&bytes)) {};
    threads::spawn("typist", "to type in the guest's console", body)?;
    Ok(typist)
}

/// Serves a port until it is closed.
pub(super) fn serve(mut port: Served, typist: &SyncSender<Vec<u8>>) {
    let mut line_since = None::<Instant>;
    loop {
        let has_input = port.clients.iter().any(|client| !client.input.is_empty());
        let limit = match line_since {
            _ if has_input => Some(RETRY),
            since => since.map(|since| LINE.saturating_sub(since.elapsed())),
        };
        let limit = limit.into_iter().chain(port.rests()).min();
        let ready = wait(&port, limit);
        if ready.wake {
            // Before the output is taken: what comes meanwhile wakes the thread again.
            let _ = rustix::io::read(&port.shared.wake, &mut [0; 8]);
        }
        let (output, is_closed) = port.shared.take();
        port.pass(&output);
        for (client, found) in port.clients.iter_mut().zip(ready.clients) {
            client.read(found);
            client.type_in(typist);
        }
        port.write_backlogs();
        if ready.listener || port.rests().is_some_and(|left| left.is_zero()) {
            port.admit();
        }
        if is_closed {
            return close(port);
        }
        if !output.is_empty() {
            thread::sleep(GATHER);
        }
        line_since = match (port.log.is_in_line(), line_since) {
            (true, Some(since)) if since.elapsed() >= LINE => {
                port.log.flush(SystemTime::now());
                None
            }
            (true, since) => Some(since.unwrap_or_else(Instant::now)),
            (false, _) => None,
        };
    }
}

/// Writes the last output.
fn close(mut port: Served) {
    port.log.flush(SystemTime::now());
    let until = Instant::now() + GOODBYE;
    loop {
        port.write_backlogs();
        port.clients.retain(|client| !client.backlog.is_empty());
        if port.clients.is_empty() || Instant::now() > until {
            return;
        }
        port.clients.iter_mut().for_each(|client| client.is_mute = true);
        wait(&port, Some(RETRY));
    }
}

/// The descriptors that are ready.
struct Ready {
    wake: bool,
    listener: bool,
    clients: Vec<PollFlags>,
}

fn wait(port: &Served, limit: Option<Duration>) -> Ready {
    let accepts = if port.rests().is_none() { PollFlags::IN } else { PollFlags::empty() };
    let mut all = vec![PollFd::new(&*port.shared, PollFlags::IN), PollFd::new(&port.listener, accepts)];
    all.extend(port.clients.iter().map(|client| PollFd::new(&client.stream, client.events())));
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    // An error, such as EINTR, counts as a turn in which nothing is ready.
    let is_ok = poll(&mut all, limit.as_ref()).is_ok();
    let mut found = all.iter().map(|polled| if is_ok { polled.revents() } else { PollFlags::empty() });
    let is_ready = |found: Option<PollFlags>| found.is_some_and(|found| !found.is_empty());
    let (wake, listener) = (is_ready(found.next()), is_ready(found.next()));
    Ready { wake, listener, clients: found.collect() }
}
