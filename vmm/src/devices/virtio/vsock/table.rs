//! Which connections there are, and which of them have something for the guest.
//!
//! ```text
//!   epoll ──look──> callers, connections ──listed──> give ──> receive queue
//!                         ^   └── <socket>_N                  transmit queue ──> take
//! ```
//!
//! The table has an epoll of its own, which the worker watches as one descriptor: connections come and go while it works
//! and stay when it pauses. Events are edges, so a connection that the guest has no room for does not wake anyone twice.

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

use super::caller::{Caller, Wish};
use super::connection::{Connection, Ports};
use super::host::Host;
use super::packet;
use super::packet::{HOST_CID, Header, STREAM, op};
use crate::devices::log_limit::LogLimit;
use crate::devices::virtio::chain::{Buffers, Chain};
use crate::devices::virtio::{Broken, Next};

/// The most connections.
const MOST_CONNECTIONS: usize = 8192;
/// The most programs that have connected and said nothing.
const MOST_CALLERS: usize = 1024;
/// The most refusals that wait for the guest; one that takes none misses the oldest.
const MOST_REFUSALS: usize = 1024;
/// The most events of one look, and callers of one turn.
const EVENTS: usize = 256;
/// How long to wait when the host has no descriptor left.
const WAIT_FOR_DESCRIPTORS: Duration = Duration::from_millis(100);
/// Ports for connections from the host, as Firecracker's; the one after the last means any.
const FIRST_PORT: u32 = 1 << 30;
const LAST_PORT: u32 = u32::MAX - 1;

const LISTENER: u64 = 0;

/// The table.
#[derive(Debug)]
pub(super) struct Table {
    // Configuration.
    guest_cid: u64,
    // Glue.
    host: Host,
    epoll: OwnedFd,
    // Volatile; none of it outlives this process. Callers and connections are known by tokens that are never used again.
    next_token: u64,
    next_port: u32,
    callers: BTreeMap<u64, Caller>,
    connections: HashMap<u64, Connection>,
    by_ports: HashMap<Ports, u64>,
    /// Those with something for the guest, and some that are gone since.
    listed: VecDeque<u64>,
    refusals: VecDeque<Header>,
    /// Somebody may be waiting at the listener.
    calls: bool,
    /// Limits what a guest can have logged by connecting again and again.
    log: Arc<LogLimit>,
    /// What is done when a connection is established.
    at_connection: AtConnection,
}

#[derive(Default)]
struct AtConnection(Option<Box<dyn FnOnce() + Send>>);

impl fmt::Debug for AtConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AtConnection").field(&self.0.is_some()).finish()
    }
}

impl Table {
    pub fn new(host: Host, guest_cid: u64) -> io::Result<Self> {
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
            listed: VecDeque::new(),
            refusals: VecDeque::new(),
            calls: true,
            log: Arc::new(LogLimit::new()),
            at_connection: AtConnection::default(),
        };
        let what = EventFlags::IN | EventFlags::ET;
        epoll::add(&table.epoll, &table.host, EventData::new_u64(LISTENER), what)?;
        Ok(table)
    }

    /// Readable when [`Table::look`] has something to see.
    pub fn events(&self) -> &OwnedFd {
        &self.epoll
    }

    /// Has something done when the next connection is established.
    pub fn at_connection(&mut self, act: impl FnOnce() + Send + 'static) {
        self.at_connection.0 = Some(Box::new(act));
    }

    /// Drops all connections.
    pub fn clear(&mut self) {
        self.callers.clear();
        self.connections.clear();
        self.by_ports.clear();
        self.listed.clear();
        self.refusals.clear();
        self.calls = true;
    }

    // ---- From the host ----

    /// Looks at what happened at the host's sockets. Not all at once: the rest shows again.
    pub fn look(&mut self) {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS);
        let now = Timespec::default();
        // Interrupted, it shows again.
        let _ = epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&now));
        for event in events {
            let (token, what) = (event.data.u64(), event.flags);
            if token == LISTENER {
                self.calls = true;
            } else if let Some(connection) = self.connections.get_mut(&token) {
                connection.look(what);
                self.update(token);
            } else {
                self.listen_to(token, what);
            }
        }
    }

    /// Lets callers in, for one turn.
    pub fn let_in(&mut self) -> Next {
        for _ in 0..EVENTS {
            if !self.calls {
                return Next::Wait;
            }
            match self.host.accept() {
                Ok(Some(stream)) => self.add_caller(stream),
                Ok(None) => self.calls = false,
                Err(error) => {
                    self.warn("accept a connection", &error);
                    return Next::At(Instant::now() + WAIT_FOR_DESCRIPTORS);
                }
            }
        }
        Next::Again
    }

    fn add_caller(&mut self, stream: UnixStream) {
        let token = self.next_token;
        if let Err(error) = self.watch(&stream, token) {
            return self.warn("watch a connection", &error);
        }
        self.next_token += 1;
        if self.callers.len() >= MOST_CALLERS {
            self.callers.pop_first();
        }
        self.callers.insert(token, Caller::new(stream));
    }

    fn listen_to(&mut self, token: u64, what: EventFlags) {
        let Some(caller) = self.callers.get_mut(&token) else { return };
        let wish = caller.listen();
        if wish == Wish::Unsaid {
            return;
        }
        let Some(Caller { stream, .. }) = self.callers.remove(&token) else { return };
        if let Wish::Port(guest) = wish
            && self.connections.len() < MOST_CONNECTIONS
        {
            let ports = self.free_ports(guest);
            let mut connection = Connection::from_host(ports, self.guest_cid, (stream, &self.log));
            connection.look(what);
            self.insert(token, connection);
        }
    }

    /// A port for the host's end, whatever ports the guest has connected to by itself.
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

    /// Takes a packet.
    pub fn take(&mut self, mut chain: Chain<'_>) -> Result<(), Broken> {
        let mut bytes = [0; packet::LEN];
        if chain.readable.read(&mut bytes) < packet::LEN {
            return Err(Broken("a packet shorter than its header"));
        }
        let header = Header::parse(&bytes);
        if header.dst_cid != HOST_CID {
            return Ok(()); // there is nobody else here
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
                    connection.take(&header, payload);
                }
                self.update(token);
            }
            None if header.op == op::REQUEST => self.connect(ports, &header),
            None => self.refuse(&header),
        }
        Ok(())
    }

    fn connect(&mut self, ports: Ports, request: &Header) {
        if self.connections.len() >= MOST_CONNECTIONS {
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
                let nobody = [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused];
                if !nobody.contains(&error.kind()) {
                    self.warn("connect for the guest", &error);
                }
                self.refuse(request);
            }
        }
    }

    fn refuse(&mut self, header: &Header) {
        if header.op == op::RST {
            return; // or both sides would refuse for ever
        }
        if self.refusals.len() >= MOST_REFUSALS {
            self.refusals.pop_front();
        }
        self.refusals.push_back(header.refusal());
    }

    // ---- To the guest ----

    /// Whether there may be a packet for the guest.
    pub fn has_packet(&self) -> bool {
        !self.refusals.is_empty() || !self.listed.is_empty()
    }

    /// The next packet for the guest, its payload in the front of `room`. None when there is none after all.
    pub fn give(&mut self, room: &Buffers<'_>) -> Option<Header> {
        if let Some(refusal) = self.refusals.pop_front() {
            return Some(refusal);
        }
        while let Some(token) = self.listed.pop_front() {
            let Some(connection) = self.connections.get_mut(&token) else { continue };
            connection.is_listed = false;
            let header = connection.give(room);
            self.update(token); // to the end of the list, if there is more
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
        self.update(token);
    }

    /// Brings the table in line with a connection that something has happened to.
    fn update(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        if connection.is_established()
            && let Some(act) = self.at_connection.0.take()
        {
            act();
        }
        if connection.is_forgotten() && self.by_ports.get(&connection.ports) == Some(&token) {
            self.by_ports.remove(&connection.ports);
        }
        if connection.is_gone() {
            self.connections.remove(&token);
            return;
        }
        if connection.has_packet() && !connection.is_listed {
            connection.is_listed = true;
            self.listed.push_back(token);
        }
        let wants_room = connection.wants_room();
        if wants_room != connection.is_watched_for_room
            && let Some(stream) = connection.stream()
        {
            // To change what an edge is makes one if there is reason, so none is missed.
            let changed = epoll::modify(&self.epoll, stream, EventData::new_u64(token), interest(wants_room));
            connection.is_watched_for_room = changed.is_ok() && wants_room;
        }
        if self.listed.len() > 2 * self.connections.len() + EVENTS {
            self.listed.retain(|token| self.connections.contains_key(token));
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
