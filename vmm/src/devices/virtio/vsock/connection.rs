//! One connection between a unix socket and a port of the guest.
//!
//! ```text
//!   host: CONNECT ──> Asked ──RESPONSE──> Open <── guest: REQUEST
//!                       │                  │
//!   refused, a rule broken, peer gone      ├── both ways at an end, a rule broken, peer gone ──> Over ──RST──> Gone
//!                       ├──> Over, Gone    └── the guest's RST ──> Gone, or before that, as long as the host
//!                                                                  has bytes to take that the guest sent: Lingers
//! ```
//!
//! What is to be said to the guest is a flag each, for a guest that does not listen. Bytes wait for it in the unix socket,
//! and for the host in a buffer that the guest's credit bounds.

use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::event::epoll::EventFlags;

use super::credit::Credit;
use super::packet::{HOST_CID, Header, STREAM, op, shut};
use super::stream;
use crate::devices::log_limit::LogLimit;
use crate::devices::virtio::chain::Buffers;

/// Which connection it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ports {
    pub host: u32,
    pub guest: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The guest is to be asked whether it accepts, or has been.
    Asked,
    Open,
    /// The guest has forgotten it, the host has bytes to take.
    Lingers,
    /// The guest is to be told that it is no more.
    Over,
    Gone,
}

/// What is to be said to the guest.
#[derive(Debug, Default)]
struct Due {
    request: bool,
    response: bool,
    credit_update: bool,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub ports: Ports,
    guest_cid: u64,
    state: State,
    /// None when the host has nothing more to do with it.
    stream: Option<UnixStream>,
    credit: Credit,
    /// What the host has yet to take.
    to_host: VecDeque<u8>,
    due: Due,
    /// The guest knows that there is more than it has room for.
    credit_wanted: bool,
    /// There may be something to read, or the end.
    readable: bool,
    /// What guest and host will do no more, as flags of [`shut`], and what the guest has heard of it.
    guest_shut: u32,
    host_shut: u32,
    host_shut_told: u32,
    /// The host left bytes of the guest unread.
    lost: bool,
    /// It is in the list of those that have something for the guest.
    pub is_listed: bool,
    /// Epoll has been asked about room.
    pub is_watched_for_room: bool,
    /// That of the device.
    log: Arc<LogLimit>,
}

/// The host's side: its socket, and where the device logs.
pub type Host<'a> = (UnixStream, &'a Arc<LogLimit>);

impl Connection {
    fn new(state: State, ports: Ports, guest_cid: u64, (stream, log): Host<'_>) -> Self {
        Self {
            ports,
            guest_cid,
            state,
            stream: Some(stream),
            credit: Credit::default(),
            to_host: VecDeque::new(),
            due: Due::default(),
            credit_wanted: false,
            readable: false,
            guest_shut: 0,
            host_shut: 0,
            host_shut_told: 0,
            lost: false,
            is_listed: false,
            is_watched_for_room: false,
            log: Arc::clone(log),
        }
    }

    /// The host wants it.
    pub fn from_host(ports: Ports, guest_cid: u64, host: Host<'_>) -> Self {
        let due = Due { request: true, ..Due::default() };
        // What follows the caller's line has been announced already.
        Self { due, readable: true, ..Self::new(State::Asked, ports, guest_cid, host) }
    }

    /// The guest wants it, and the host has somebody there.
    pub fn from_guest(ports: Ports, request: &Header, host: Host<'_>) -> Self {
        let due = Due { response: true, ..Due::default() };
        let mut connection = Self { due, ..Self::new(State::Open, ports, request.src_cid, host) };
        connection.credit.hear(request);
        connection
    }

    // ---- What the table asks ----

    /// Whether both sides have said that they want it.
    pub fn is_established(&self) -> bool {
        self.state == State::Open && !self.due.response
    }

    pub fn is_gone(&self) -> bool {
        self.state == State::Gone
    }

    /// Whether the ports are free for another.
    pub fn is_forgotten(&self) -> bool {
        matches!(self.state, State::Lingers | State::Gone)
    }

    pub fn stream(&self) -> Option<&UnixStream> {
        self.stream.as_ref()
    }

    pub fn wants_room(&self) -> bool {
        self.stream.is_some() && !self.to_host.is_empty()
    }

    /// Whether there may be a packet for the guest.
    pub fn has_packet(&self) -> bool {
        match self.state {
            State::Asked => self.due.request,
            State::Open => {
                self.due.response || self.due.credit_update || self.has_shutdown() || self.may_read()
            }
            State::Over => true,
            State::Lingers | State::Gone => false,
        }
    }

    fn has_shutdown(&self) -> bool {
        self.host_shut & !self.host_shut_told != 0
    }

    fn may_read(&self) -> bool {
        let wanted = self.host_shut & shut::SEND == 0 && self.guest_shut & shut::RECEIVE == 0;
        self.readable && wanted && (self.credit.left() > 0 || !self.credit_wanted)
    }

    // ---- The guest's packets ----

    /// Takes a packet with as much payload as its header says, or None if its chain has less.
    pub fn take(&mut self, header: &Header, payload: Option<Buffers<'_>>) {
        if matches!(self.state, State::Over | State::Gone) {
            if header.op == op::RST {
                self.state = State::Gone;
            }
            return; // what the guest sent before it has heard
        }
        self.credit.hear(header);
        self.credit_wanted &= self.credit.left() == 0;
        let Some(payload) = payload else { return self.break_off("a packet longer than its chain") };
        match (self.state, header.op) {
            (_, op::RST) => self.forget(),
            (State::Asked, op::RESPONSE) if !self.due.request => self.accept(),
            (_, op::CREDIT_UPDATE) => {}
            (_, op::CREDIT_REQUEST) => self.due.credit_update = true,
            (State::Open, op::RW) if !self.due.response => self.take_data(payload),
            (State::Open, op::SHUTDOWN) => {
                self.guest_shut |= header.flags & shut::BOTH;
                if self.guest_shut & shut::RECEIVE != 0 {
                    self.shut_down(Shutdown::Read);
                }
                self.finish();
            }
            _ => self.break_off("a packet that makes no sense now"),
        }
    }

    fn accept(&mut self) {
        self.state = State::Open;
        let answer = format!("OK {}\n", self.ports.host);
        let sent = self.stream.as_ref().map(|stream| stream::write_two(stream, (answer.as_bytes(), &[])));
        if !matches!(sent, Some(Ok(count)) if count == answer.len()) {
            self.break_off("the host does not wait for the answer any more");
        }
    }

    fn take_data(&mut self, mut payload: Buffers<'_>) {
        let len = payload.len() as u32; // as the header said
        if self.guest_shut & shut::SEND != 0 {
            return self.break_off("data after its end");
        }
        if !self.credit.receive(len) {
            return self.break_off("data beyond the guest's credit");
        }
        if self.to_host.is_empty() && self.host_shut & shut::RECEIVE == 0 {
            let sent = self.stream.as_ref().map_or(Ok(0), |stream| stream::write(stream, &payload));
            if let Some(sent) = self.written(sent) {
                payload.take(sent);
            }
        }
        if self.host_shut & shut::RECEIVE != 0 {
            self.lost = true;
            self.forward(payload.len());
        } else if !payload.is_empty() {
            let mut rest = vec![0; payload.len()];
            payload.read(&mut rest);
            self.to_host.extend(rest);
        }
    }

    /// The guest knows nothing of it any more.
    fn forget(&mut self) {
        let lingers = self.guest_shut & shut::SEND != 0 && !self.to_host.is_empty();
        self.state = if lingers { State::Lingers } else { State::Gone };
    }

    /// Ends it for both.
    fn break_off(&mut self, why: &str) {
        log::debug!("vsock: {:?}: {why}", self.ports);
        self.state = State::Over;
        self.stream = None;
        self.to_host = VecDeque::new();
    }

    // ---- The host's socket ----

    /// The socket is ready.
    pub fn look(&mut self, events: EventFlags) {
        let end = EventFlags::HUP | EventFlags::ERR;
        if events.intersects(EventFlags::IN | EventFlags::RDHUP | end) {
            self.readable = true;
        }
        if events.contains(EventFlags::HUP) {
            if self.host_shut & shut::SEND != 0 || self.guest_shut & shut::RECEIVE != 0 {
                self.host_shut = shut::BOTH;
            }
            if self.state == State::Asked {
                let asked = !self.due.request;
                self.break_off("the host does not wait for an answer");
                if !asked {
                    self.state = State::Gone;
                }
            }
        }
        if events.intersects(EventFlags::OUT | end) {
            self.flush();
        }
    }

    fn flush(&mut self) {
        while !self.to_host.is_empty() {
            let Some(stream) = &self.stream else { return };
            match self.written(stream::write_two(stream, self.to_host.as_slices())) {
                Some(sent) if sent > 0 => drop(self.to_host.drain(..sent)),
                _ => break,
            }
        }
        if self.to_host.is_empty() {
            self.to_host = VecDeque::new();
            self.finish();
        }
    }

    /// What came of writing: bytes of the guest that are the host's now.
    fn written(&mut self, result: io::Result<usize>) -> Option<usize> {
        match result {
            Ok(sent) => self.forward(sent),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            Err(error) => {
                let ports = self.ports;
                self.log.warn(format_args!(
                    "vsock: {ports:?}: the host does not take what the guest sends: {error}"
                ));
                let unsent = std::mem::take(&mut self.to_host);
                self.forward(unsent.len());
                self.lost = true;
                self.host_shut |= shut::RECEIVE;
                self.readable = true; // what it has said before is there yet, and its end
                self.finish();
                return None;
            }
        }
        result.ok()
    }

    fn forward(&mut self, bytes: usize) {
        self.credit.forward(bytes as u32); // no more than were received
        self.due.credit_update |= self.credit.is_worth_telling() && self.guest_shut & shut::SEND == 0;
    }

    /// All that the guest sent has reached the host, or never will: what was to come after that comes now.
    fn finish(&mut self) {
        if !self.to_host.is_empty() {
            return;
        }
        let nothing_to_guest = self.guest_shut & shut::RECEIVE != 0 || self.host_shut & shut::SEND != 0;
        if self.state == State::Lingers {
            self.state = State::Gone;
        } else if self.guest_shut == shut::BOTH || self.lost && nothing_to_guest {
            self.break_off("at an end both ways");
        } else if self.guest_shut & shut::SEND != 0 {
            self.shut_down(Shutdown::Write);
        }
    }

    fn shut_down(&self, what: Shutdown) {
        if let Some(stream) = &self.stream {
            let _ = stream.shutdown(what); // of a peer that has gone there is nothing to shut
        }
    }

    // ---- Packets for the guest ----

    /// The next packet, its payload in the front of `room`. None when there is none after all.
    pub fn give(&mut self, room: &Buffers<'_>) -> Option<Header> {
        let (op, flags, len) = match self.state {
            State::Over => {
                self.state = State::Gone;
                (op::RST, 0, 0)
            }
            State::Asked if std::mem::take(&mut self.due.request) => (op::REQUEST, 0, 0),
            State::Open if std::mem::take(&mut self.due.response) => (op::RESPONSE, 0, 0),
            State::Open if std::mem::take(&mut self.due.credit_update) => (op::CREDIT_UPDATE, 0, 0),
            State::Open if self.has_shutdown() => self.say_shutdown(),
            State::Open if self.may_read() => self.read(room)?,
            _ => return None,
        };
        let mut header = Header {
            src_cid: HOST_CID,
            dst_cid: self.guest_cid,
            src_port: self.ports.host,
            dst_port: self.ports.guest,
            len,
            socket_type: STREAM,
            op,
            flags,
            ..Header::default()
        };
        self.credit.tell(&mut header);
        Some(header)
    }

    fn say_shutdown(&mut self) -> (u16, u32, u32) {
        self.host_shut_told = self.host_shut;
        (op::SHUTDOWN, self.host_shut, 0)
    }

    fn read(&mut self, room: &Buffers<'_>) -> Option<(u16, u32, u32)> {
        let left = self.credit.left();
        if left == 0 {
            self.credit_wanted = true;
            return Some((op::CREDIT_REQUEST, 0, 0));
        }
        match stream::read(self.stream.as_ref()?, room, left as usize) {
            Ok(0) => {
                let closed = self.stream.as_ref().is_none_or(stream::is_closed);
                self.host_shut |= if closed { shut::BOTH } else { shut::SEND };
                self.finish();
                match self.state {
                    State::Open => Some(self.say_shutdown()),
                    _ => None, // it stays listed for its RST
                }
            }
            Ok(count) => {
                self.credit.send(count as u32);
                Some((op::RW, 0, count as u32))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                None
            }
            Err(error) => {
                self.log.warn(format_args!("vsock: {:?}: cannot read from the host: {error}", self.ports));
                self.break_off("the host has gone");
                None
            }
        }
    }
}
