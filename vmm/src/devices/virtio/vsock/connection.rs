//! A connection between a unix socket and a port of the guest.
//!
//! ```text
//!   host: CONNECT ──> Requested ──RESPONSE──> Open <── guest: REQUEST
//!                        │                     │
//!    refused, violation, peer gone             ├── both ways ended, violation, peer gone ──> Resetting ──RST──> Closed
//!                        ├──> Resetting,Closed └── the guest's RST ──> Closed, or first Draining, as long as the
//!                                                                      host has to take bytes that the guest sent
//! ```
//!
//! Each kind of packet for the guest is a flag, so a guest that takes no packets costs no memory. Bytes for
//! the guest wait in the unix socket. Bytes for the host wait in a buffer that the guest's credit bounds.

use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::event::epoll::EventFlags;

use super::credit::Credit;
use super::packet::{HOST_CID, PacketHeader, STREAM, op, shut};
use super::stream;
use crate::devices::log_limit::LogLimit;
use crate::devices::virtio::chain::Buffers;

/// Ports of a connection, which identify it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ports {
    pub host: u32,
    pub guest: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionState {
    /// The guest has to be asked for the connection, or has been.
    Requested,
    Open,
    /// The guest has closed it, and the host has bytes to take.
    Draining,
    /// The guest has to be told that it is closed.
    Resetting,
    Closed,
}

/// Packets that the guest has to get.
#[derive(Debug, Default)]
struct PendingPackets {
    request: bool,
    response: bool,
    credit_update: bool,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub ports: Ports,
    guest_cid: u64,
    state: ConnectionState,
    /// `None` once the host's side has ended.
    stream: Option<UnixStream>,
    credit: Credit,
    /// Bytes that the host has yet to take.
    to_host: VecDeque<u8>,
    pending: PendingPackets,
    /// The guest was told that more bytes wait than it has room for.
    credit_requested: bool,
    /// The socket may have bytes or its end to read.
    readable: bool,
    /// Directions that guest and host have shut down, as flags of [`shut`], and the host's flags that the
    /// guest knows.
    guest_shut: u32,
    host_shut: u32,
    announced_host_shut: u32,
    /// The host left bytes of the guest unread.
    lost_bytes: bool,
    /// The connection is in the table's list of connections with packets for the guest.
    pub is_ready: bool,
    /// Epoll reports room in the socket.
    pub is_watched_for_room: bool,
    /// A program of the host began it.
    pub is_of_program: bool,
    /// Both sides have agreed to it, perhaps some time ago.
    pub was_established: bool,
    /// Log of the device.
    log: Arc<LogLimit>,
}

/// The host's socket, and the log of the device.
pub type HostSide<'a> = (UnixStream, &'a Arc<LogLimit>);

impl Connection {
    fn new(state: ConnectionState, ports: Ports, guest_cid: u64, (stream, log): HostSide<'_>) -> Self {
        Self {
            ports,
            guest_cid,
            state,
            stream: Some(stream),
            credit: Credit::default(),
            to_host: VecDeque::new(),
            pending: PendingPackets::default(),
            credit_requested: false,
            readable: false,
            guest_shut: 0,
            host_shut: 0,
            announced_host_shut: 0,
            lost_bytes: false,
            is_ready: false,
            is_watched_for_room: false,
            is_of_program: false,
            was_established: false,
            log: Arc::clone(log),
        }
    }

    /// Makes a connection that the host requests.
    pub fn from_host(ports: Ports, guest_cid: u64, host: HostSide<'_>) -> Self {
        let pending = PendingPackets { request: true, ..PendingPackets::default() };
        // Epoll has reported the bytes after the caller's line already.
        Self { pending, readable: true, ..Self::new(ConnectionState::Requested, ports, guest_cid, host) }
    }

    /// Makes a connection that the guest requested and that a host program has accepted.
    pub fn from_guest(ports: Ports, request: &PacketHeader, host: HostSide<'_>) -> Self {
        let pending = PendingPackets { response: true, ..PendingPackets::default() };
        let mut connection =
            Self { pending, ..Self::new(ConnectionState::Open, ports, request.src_cid, host) };
        connection.credit.update_from_guest(request);
        connection
    }

    // ---- Queries of the table ----

    /// Returns whether both sides have agreed to the connection.
    pub fn is_established(&self) -> bool {
        self.state == ConnectionState::Open && !self.pending.response
    }

    pub fn is_closed(&self) -> bool {
        self.state == ConnectionState::Closed
    }

    /// Returns whether another connection may use the ports.
    pub fn has_free_ports(&self) -> bool {
        matches!(self.state, ConnectionState::Draining | ConnectionState::Closed)
    }

    pub fn stream(&self) -> Option<&UnixStream> {
        self.stream.as_ref()
    }

    pub fn wants_room(&self) -> bool {
        self.stream.is_some() && !self.to_host.is_empty()
    }

    /// Returns whether there may be a packet for the guest.
    pub fn has_packet(&self) -> bool {
        match self.state {
            ConnectionState::Requested => self.pending.request,
            ConnectionState::Open => {
                self.pending.response || self.pending.credit_update || self.has_shutdown() || self.may_read()
            }
            ConnectionState::Resetting => true,
            ConnectionState::Draining | ConnectionState::Closed => false,
        }
    }

    fn has_shutdown(&self) -> bool {
        self.host_shut & !self.announced_host_shut != 0
    }

    fn may_read(&self) -> bool {
        let is_wanted = self.host_shut & shut::SEND == 0 && self.guest_shut & shut::RECEIVE == 0;
        self.readable && is_wanted && (self.credit.available() > 0 || !self.credit_requested)
    }

    // ---- The guest's packets ----

    /// Handles a packet with the payload that its header names, or `None` if its chain is shorter.
    pub fn handle_packet(&mut self, header: &PacketHeader, payload: Option<Buffers<'_>>) {
        if matches!(self.state, ConnectionState::Resetting | ConnectionState::Closed) {
            if header.op == op::RST {
                self.state = ConnectionState::Closed;
            }
            return; // sent before the guest knew of the end
        }
        self.credit.update_from_guest(header);
        self.credit_requested &= self.credit.available() == 0;
        let Some(payload) = payload else {
            return self.abort("the guest sent a packet longer than its chain");
        };
        match (self.state, header.op) {
            (_, op::RST) => self.close_by_guest(),
            (ConnectionState::Requested, op::RESPONSE) if !self.pending.request => self.accept(),
            (_, op::CREDIT_UPDATE) => {}
            (_, op::CREDIT_REQUEST) => self.pending.credit_update = true,
            (ConnectionState::Open, op::RW) if !self.pending.response => self.take_data(payload),
            (ConnectionState::Open, op::SHUTDOWN) => {
                self.guest_shut |= header.flags & shut::BOTH;
                if self.guest_shut & shut::RECEIVE != 0 {
                    self.shut_down(Shutdown::Read);
                }
                self.finish();
            }
            _ => self.abort("the guest sent a packet that is invalid in this state"),
        }
    }

    fn accept(&mut self) {
        self.state = ConnectionState::Open;
        let response = format!("OK {}\n", self.ports.host);
        let sent = self.stream.as_ref().map(|stream| stream::write_two(stream, (response.as_bytes(), &[])));
        if !matches!(sent, Some(Ok(count)) if count == response.len()) {
            self.abort("the host program left before the response");
        }
    }

    fn take_data(&mut self, mut payload: Buffers<'_>) {
        let len = payload.len() as u32; // the payload has the header's length
        if self.guest_shut & shut::SEND != 0 {
            return self.abort("the guest sent data after its shutdown");
        }
        if !self.credit.receive(len) {
            return self.abort("the guest sent data beyond its credit");
        }
        if self.to_host.is_empty() && self.host_shut & shut::RECEIVE == 0 {
            let sent = self.stream.as_ref().map_or(Ok(0), |stream| stream::write(stream, &payload));
            if let Some(sent) = self.written(sent) {
                payload.take(sent);
            }
        }
        if self.host_shut & shut::RECEIVE != 0 {
            self.lost_bytes = true;
            self.forward(payload.len());
        } else if !payload.is_empty() {
            let mut rest = vec![0; payload.len()];
            payload.read(&mut rest);
            self.to_host.extend(rest);
        }
    }

    /// Closes the connection after the guest's RST.
    fn close_by_guest(&mut self) {
        let drains = self.guest_shut & shut::SEND != 0 && !self.to_host.is_empty();
        self.state = if drains { ConnectionState::Draining } else { ConnectionState::Closed };
    }

    /// Ends the connection for both sides.
    fn abort(&mut self, cause: &str) {
        log::debug!("vsock: {:?}: {cause}", self.ports);
        self.state = ConnectionState::Resetting;
        self.stream = None;
        self.to_host = VecDeque::new();
    }

    // ---- The host's socket ----

    /// Handles events of the host's socket.
    pub fn handle_events(&mut self, events: EventFlags) {
        let end = EventFlags::HUP | EventFlags::ERR;
        if events.intersects(EventFlags::IN | EventFlags::RDHUP | end) {
            self.readable = true;
        }
        if events.contains(EventFlags::HUP) {
            if self.host_shut & shut::SEND != 0 || self.guest_shut & shut::RECEIVE != 0 {
                self.host_shut = shut::BOTH;
            }
            if self.state == ConnectionState::Requested {
                let was_requested = !self.pending.request;
                self.abort("the host program left before the response");
                if !was_requested {
                    self.state = ConnectionState::Closed;
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

    /// Handles the result of a write of guest bytes to the host. Returns the bytes written.
    fn written(&mut self, result: io::Result<usize>) -> Option<usize> {
        match result {
            Ok(sent) => self.forward(sent),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            Err(error) => {
                let ports = self.ports;
                self.log.warn(format_args!("vsock: {ports:?}: cannot write to the host program: {error}"));
                let unsent = std::mem::take(&mut self.to_host);
                self.forward(unsent.len());
                self.lost_bytes = true;
                self.host_shut |= shut::RECEIVE;
                self.readable = true; // earlier bytes and the end are still to be read
                self.finish();
                return None;
            }
        }
        result.ok()
    }

    fn forward(&mut self, bytes: usize) {
        self.credit.forward(bytes as u32); // at most the bytes received
        self.pending.credit_update |= self.credit.is_update_due() && self.guest_shut & shut::SEND == 0;
    }

    /// Continues the shutdown once all bytes of the guest have reached the host, or never will.
    fn finish(&mut self) {
        if !self.to_host.is_empty() {
            return;
        }
        let nothing_to_guest = self.guest_shut & shut::RECEIVE != 0 || self.host_shut & shut::SEND != 0;
        if self.state == ConnectionState::Draining {
            self.state = ConnectionState::Closed;
        } else if self.guest_shut == shut::BOTH || self.lost_bytes && nothing_to_guest {
            self.abort("both directions have ended");
        } else if self.guest_shut & shut::SEND != 0 {
            self.shut_down(Shutdown::Write);
        }
    }

    fn shut_down(&self, direction: Shutdown) {
        if let Some(stream) = &self.stream {
            let _ = stream.shutdown(direction); // fails only if the peer has gone
        }
    }

    // ---- Packets for the guest ----

    /// Returns the next packet, with its payload at the front of `room`. Returns `None` if there is none
    /// after all.
    pub fn next_packet(&mut self, room: &Buffers<'_>) -> Option<PacketHeader> {
        let (op, flags, len) = match self.state {
            ConnectionState::Resetting => {
                self.state = ConnectionState::Closed;
                (op::RST, 0, 0)
            }
            ConnectionState::Requested if std::mem::take(&mut self.pending.request) => (op::REQUEST, 0, 0),
            ConnectionState::Open if std::mem::take(&mut self.pending.response) => (op::RESPONSE, 0, 0),
            ConnectionState::Open if std::mem::take(&mut self.pending.credit_update) => {
                (op::CREDIT_UPDATE, 0, 0)
            }
            ConnectionState::Open if self.has_shutdown() => self.announce_shutdown(),
            ConnectionState::Open if self.may_read() => self.read(room)?,
            _ => return None,
        };
        let mut header = PacketHeader {
            src_cid: HOST_CID,
            dst_cid: self.guest_cid,
            src_port: self.ports.host,
            dst_port: self.ports.guest,
            len,
            socket_type: STREAM,
            op,
            flags,
            ..PacketHeader::default()
        };
        self.credit.fill_header(&mut header);
        Some(header)
    }

    fn announce_shutdown(&mut self) -> (u16, u32, u32) {
        self.announced_host_shut = self.host_shut;
        (op::SHUTDOWN, self.host_shut, 0)
    }

    fn read(&mut self, room: &Buffers<'_>) -> Option<(u16, u32, u32)> {
        let left = self.credit.available();
        if left == 0 {
            self.credit_requested = true;
            return Some((op::CREDIT_REQUEST, 0, 0));
        }
        match stream::read(self.stream.as_ref()?, room, left as usize) {
            Ok(0) => {
                let closed = self.stream.as_ref().is_none_or(stream::is_closed);
                self.host_shut |= if closed { shut::BOTH } else { shut::SEND };
                self.finish();
                match self.state {
                    ConnectionState::Open => Some(self.announce_shutdown()),
                    _ => None, // it stays ready for its RST
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
                // A program that is killed, or leaves with bytes unread, resets its connection.
                if error.kind() != io::ErrorKind::ConnectionReset {
                    let Ports { host, guest } = self.ports;
                    self.log.warn(format_args!(
                        "vsock: cannot read from the program at the host's port {host}, which is connected \
                         to port {guest} of the guest: {error}"
                    ));
                }
                self.abort("the host program has gone");
                None
            }
        }
    }
}
