//! The table of connections, and the list of those with packets for the guest.
//!
//! ```text
//!   epoll ──handle_events──> callers, connections ──ready──> next_packet ──> receive queue
//!                                ^   └── <socket>_N         transmit queue ──> handle_packet
//! ```
//!
//! The table has an epoll of its own, which the worker watches as one descriptor: connections come and go
//! while it works and stay when it pauses. Events are edges, so a connection for which the guest has no room
//! wakes the worker only once.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use super::caller::{Caller, CallerRequest};
use super::connection::{Connection, Ports};
use super::host::HostSocket;
use super::packet;
use super::packet::{HOST_CID, PacketHeader, STREAM, op};
use crate::counters::device::ConnectionCounters;
use crate::devices::log_limit::LogLimit;
use crate::devices::virtio::chain::{Buffers, Chain};
use crate::devices::virtio::{DeviceFailed, NextTurn};

/// Connections at most.
const MAX_CONNECTIONS: usize = 8192;
/// Callers without a complete line at most.
const MAX_CALLERS: usize = 1024;
/// Refusals that wait for the guest at most; a guest that takes none misses the oldest.
const MAX_REFUSALS: usize = 1024;
/// Events of one call, and callers of one turn, at most.
const EVENTS: usize = 256;
/// Time until the next attempt after the host had no descriptor left.
const WAIT_FOR_DESCRIPTORS: Duration = Duration::from_millis(100);
/// Ports for connections from the host, as Firecracker's; the one after the last means any port.
const FIRST_PORT: u32 = 1 << 30;
const LAST_PORT: u32 = u32::MAX - 1;

const LISTENER: u64 = 0;

/// The connections of a device.
#[derive(Debug)]
pub(super) struct ConnectionTable {
    // Configuration.
    guest_cid: u64,
    // Glue.
    host: HostSocket,
    epoll: OwnedFd,
    // Volatile; none of it outlives this process. Each caller and connection has a token that is never used
    // again.
    next_token: u64,
    next_port: u32,
    callers: BTreeMap<u64, Caller>,
    connections: HashMap<u64, Connection>,
    by_ports: HashMap<Ports, u64>,
    /// Connections with packets for the guest, and some that are closed since.
    ready: VecDeque<u64>,
    refusals: VecDeque<PacketHeader>,
    /// A caller may be waiting at the listener.
    has_callers: bool,
    /// Limits the log lines that a guest can cause by connecting again and again.
    log: Arc<LogLimit>,
    /// Called when a connection is established.
    on_connection: OnEvent,
    /// Called when a connection of a host program has ended.
    on_end: OnEvent,
    /// Whether such a connection has ended.
    one_has_ended: bool,
    /// Number of connections made and ended since [`ConnectionTable::count`].
    made: u64,
    ended: u64,
}

/// Called once.
#[derive(Default)]
struct OnEvent(Option<Box<dyn FnOnce() + Send>>);

impl OnEvent {
    fn call(&mut self) {
        if let Some(act) = self.0.take() {
            act();
        }
    }
}

impl fmt::Debug for OnEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnEvent").field(&self.0.is_some()).finish()
    }
}

impl ConnectionTable {
    /// Removes the file of the host's socket.
    pub fn remove_socket(&self) {
        self.host.remove_file();
    }

    pub fn new(host: HostSocket, guest_cid: u64) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let table = Self {
            guest_cid,
            host,
            epoll,
            next_token: LISTENER + 1,
            next_port: FIRST_PORT,
            callers: BTreeMap::new(),
            connections: HashMap::new(),
            by_ports: HashMap::new(),
            ready: VecDeque::new(),
            refusals: VecDeque::new(),
            has_callers: true,
            log: Arc::new(LogLimit::new()),
            on_connection: OnEvent::default(),
            on_end: OnEvent::default(),
            one_has_ended: false,
            made: 0,
            ended: 0,
        };
        let interest = EventFlags::IN | EventFlags::ET;
        epoll::add(&table.epoll, &table.host, EventData::new_u64(LISTENER), interest)?;
        Ok(table)
    }

    /// Returns a descriptor that is readable when [`ConnectionTable::handle_events`] has work.
    pub fn events(&self) -> &OwnedFd {
        &self.epoll
    }

    /// Calls `act` when the next connection is established.
    pub fn on_connection(&mut self, act: impl FnOnce() + Send + 'static) {
        self.on_connection.0 = Some(Box::new(act));
    }

    /// Calls `act` when the first connection of a host program has ended. Calls it at once if one has.
    pub fn on_end(&mut self, act: impl FnOnce() + Send + 'static) {
        self.on_end.0 = Some(Box::new(act));
        if self.one_has_ended {
            self.on_end.call();
        }
    }

    /// Adds the connections made and ended since the last call.
    pub fn count(&mut self, counters: &ConnectionCounters) {
        counters.made.add(std::mem::take(&mut self.made));
        counters.ended.add(std::mem::take(&mut self.ended));
    }

    /// Drops all connections, and the host programs that have not named a port.
    pub fn clear(&mut self) {
        self.callers.clear();
        self.drop_connections();
        self.has_callers = true;
    }

    /// Drops all connections.
    pub fn drop_connections(&mut self) {
        self.ended += self.connections.len() as u64;
        self.connections.clear();
        self.by_ports.clear();
        self.ready.clear();
        self.refusals.clear();
    }

    // ---- From the host ----

    /// Handles events of the host's sockets. Not all at once: the rest is reported again.
    pub fn handle_events(&mut self) {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS);
        let now = Timespec::default();
        // An interrupted wait reports the events again.
        let _ = epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&now));
        for event in events {
            let (token, flags) = (event.data.u64(), event.flags);
            if token == LISTENER {
                self.has_callers = true;
            } else if let Some(connection) = self.connections.get_mut(&token) {
                connection.handle_events(flags);
                self.update(token);
            } else {
                self.read_caller(token, flags);
            }
        }
    }

    /// Accepts callers for one turn.
    pub fn accept_callers(&mut self) -> NextTurn {
        for _ in 0..EVENTS {
            if !self.has_callers {
                return NextTurn::Wait;
            }
            match self.host.accept() {
                Ok(Some(stream)) => self.add_caller(stream, true),
                Ok(None) => self.has_callers = false,
                Err(error) => {
                    self.warn("accept a connection", &error);
                    return NextTurn::At(Instant::now() + WAIT_FOR_DESCRIPTORS);
                }
            }
        }
        NextTurn::Again
    }

    /// Adds a host program, or this one, that will name a port.
    pub fn add_caller(&mut self, stream: UnixStream, is_program: bool) {
        let token = self.next_token;
        if let Err(error) = self.watch(&stream, token) {
            return self.warn("watch a connection", &error);
        }
        self.next_token += 1;
        if self.callers.len() >= MAX_CALLERS {
            self.callers.pop_first();
        }
        self.callers.insert(token, Caller::new(stream, is_program));
    }

    fn read_caller(&mut self, token: u64, flags: EventFlags) {
        let Some(caller) = self.callers.get_mut(&token) else { return };
        let request = caller.read_line();
        if request == CallerRequest::Incomplete {
            return;
        }
        let Some(Caller { stream, is_program, .. }) = self.callers.remove(&token) else { return };
        if let CallerRequest::Port(guest) = request
            && self.connections.len() < MAX_CONNECTIONS
        {
            let ports = self.free_ports(guest);
            let mut connection = Connection::from_host(ports, self.guest_cid, (stream, &self.log));
            connection.is_of_program = is_program;
            connection.handle_events(flags);
            self.insert(token, connection);
        }
    }

    /// Returns a port for the host's end that no other connection to the guest's port uses.
    fn free_ports(&mut self, guest: u32) -> Ports {
        loop {
            let host = self.next_port;
            self.next_port = if host < LAST_PORT { host + 1 } else { FIRST_PORT };
            let ports = Ports { host, guest };
            if !self.by_ports.contains_key(&ports) {
                return ports;
            }
        }
    }

    // ---- From the guest ----

    /// Handles a packet of the guest.
    pub fn handle_packet(&mut self, mut chain: Chain<'_>) -> Result<(), DeviceFailed> {
        let mut bytes = [0; packet::LEN];
        if chain.readable.read(&mut bytes) < packet::LEN {
            return Err(DeviceFailed("a packet is shorter than its header"));
        }
        let header = PacketHeader::parse(&bytes);
        if header.dst_cid != HOST_CID {
            return Ok(()); // no other CID is reachable
        }
        if header.socket_type != STREAM || header.src_cid != self.guest_cid {
            self.refuse(&header);
            return Ok(());
        }
        let ports = Ports { host: header.dst_port, guest: header.src_port };
        match self.by_ports.get(&ports) {
            Some(&token) => {
                let len = header.len as usize;
                let payload = (len <= chain.readable.len()).then(|| chain.readable.take(len));
                if let Some(connection) = self.connections.get_mut(&token) {
                    connection.handle_packet(&header, payload);
                }
                self.update(token);
            }
            None if header.op == op::REQUEST => self.connect(ports, &header),
            None => self.refuse(&header),
        }
        Ok(())
    }

    fn connect(&mut self, ports: Ports, request: &PacketHeader) {
        if self.connections.len() >= MAX_CONNECTIONS {
            return self.refuse(request);
        }
        let token = self.next_token;
        let connected = self.host.connect(ports.host);
        match connected.and_then(|stream| self.watch(&stream, token).map(|()| stream)) {
            Ok(stream) => {
                self.next_token += 1;
                self.insert(token, Connection::from_guest(ports, request, (stream, &self.log)));
            }
            Err(error) => {
                let no_listener = [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused];
                if !no_listener.contains(&error.kind()) {
                    self.warn("connect the guest to a host program's socket", &error);
                }
                self.refuse(request);
            }
        }
    }

    fn refuse(&mut self, header: &PacketHeader) {
        if header.op == op::RST {
            return; // or both sides would refuse forever
        }
        if self.refusals.len() >= MAX_REFUSALS {
            self.refusals.pop_front();
        }
        self.refusals.push_back(header.refusal());
    }

    // ---- To the guest ----

    /// Returns whether there may be a packet for the guest.
    pub fn has_packet(&self) -> bool {
        !self.refusals.is_empty() || !self.ready.is_empty()
    }

    /// Returns the next packet for the guest, with its payload at the front of `room`. Returns `None` if
    /// there is none after all.
    pub fn next_packet(&mut self, room: &Buffers<'_>) -> Option<PacketHeader> {
        if let Some(refusal) = self.refusals.pop_front() {
            return Some(refusal);
        }
        while let Some(token) = self.ready.pop_front() {
            let Some(connection) = self.connections.get_mut(&token) else { continue };
            connection.is_ready = false;
            let header = connection.next_packet(room);
            self.update(token); // to the end of the list, if it has more packets
            if header.is_some() {
                return header;
            }
        }
        None
    }

    // ---- Bookkeeping ----

    fn insert(&mut self, token: u64, connection: Connection) {
        self.by_ports.insert(connection.ports, token);
        self.connections.insert(token, connection);
        self.made += 1;
        self.update(token);
    }

    /// Updates the table after a change of a connection.
    fn update(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        if connection.is_established() {
            connection.was_established = true;
            self.on_connection.call();
        }
        if connection.has_free_ports() && self.by_ports.get(&connection.ports) == Some(&token) {
            self.by_ports.remove(&connection.ports);
        }
        if connection.is_closed() {
            if connection.is_of_program && connection.was_established {
                self.one_has_ended = true;
                self.on_end.call();
            }
            self.connections.remove(&token);
            self.ended += 1;
            return;
        }
        if connection.has_packet() && !connection.is_ready {
            connection.is_ready = true;
            self.ready.push_back(token);
        }
        let wants_room = connection.wants_room();
        if wants_room != connection.is_watched_for_room
            && let Some(stream) = connection.stream()
        {
            // A change of the events reports those that are ready, so none is missed.
            let changed = epoll::modify(&self.epoll, stream, EventData::new_u64(token), interest(wants_room));
            connection.is_watched_for_room = changed.is_ok() && wants_room;
        }
        if self.ready.len() > 2 * self.connections.len() + EVENTS {
            self.ready.retain(|token| self.connections.contains_key(token));
        }
    }

    fn watch(&self, stream: &UnixStream, token: u64) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, stream, EventData::new_u64(token), interest(false))?)
    }

    fn warn(&self, act: &str, error: &io::Error) {
        self.log.warn(format_args!("vsock: cannot {act}: {error}"));
    }
}

fn interest(room: bool) -> EventFlags {
    let always = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
    if room { always | EventFlags::OUT } else { always }
}
