//! TCP for the metadata service, by smoltcp. Each socket is one connection or listens for one.
//!
//! ```text
//!   listens ──SYN──> connection ──both ends closed, or its time is over──> listens
//! ```

use std::fmt;
use std::net::Ipv4Addr;
use std::time::Instant;

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Instant as StackTime;
use smoltcp::wire::{EthernetAddress, IpCidr, IpEndpoint};

use super::connection::Connection;
use super::frame;
use super::frame::{PORT, Sender, Use};
use super::link::Link;
use super::request::{LONGEST, Request};
use super::response::Response;

/// Most connections. One more takes the place of that whose time is over first.
const MOST_CONNECTIONS: usize = 32;
/// Bytes of an answer that are on the way at once.
const SEND_BUFFER: usize = 16 << 10;

/// The stack.
pub(super) struct Stack {
    address: Ipv4Addr,
    interface: Interface,
    sockets: SocketSet<'static>,
    connections: Vec<(SocketHandle, Connection)>,
    link: Link,
    /// The sender whose hardware address the interface learned last.
    announced: Option<Sender>,
    /// Connections that were made and that ended, and are not counted yet.
    made: u64,
    ended: u64,
    /// The start of the stack's time.
    epoch: Instant,
}

impl fmt::Debug for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stack").field("connections", &self.connections).finish_non_exhaustive()
    }
}

impl Stack {
    /// Makes a stack at `address` with packets of at most `mtu` bytes. Sequence numbers come from `seed`.
    pub fn new(address: Ipv4Addr, mtu: u16, seed: u64, now: Instant) -> Self {
        let mut link = Link::new(mtu);
        let mut config = Config::new(EthernetAddress(frame::MAC).into());
        config.random_seed = seed;
        let mut interface = Interface::new(config, &mut link, StackTime::ZERO);
        interface.update_ip_addrs(|addresses| {
            // Every sender is a neighbour, since the guest is the only one. There is room for one address.
            let _ = addresses.push(IpCidr::new(address.into(), 0));
        });
        let sockets = SocketSet::new(Vec::new());
        let (connections, announced, made, ended) = (Vec::new(), None, 0, 0);
        Self { address, interface, sockets, connections, link, announced, made, ended, epoch: now }
    }

    /// Takes a frame of the guest, and answers what it completes. Returns whether it has a use for the frame.
    pub fn receive(
        &mut self,
        mut frame: Vec<u8>,
        now: Instant,
        answer: impl FnMut(&Request<'_>) -> Response,
    ) -> bool {
        match frame::use_of(&frame) {
            Use::Nothing => return false,
            Use::Arp => {}
            Use::Segment { sender, opens } => {
                // A neighbour is forgotten after a minute without frames.
                if opens.is_some() || self.announced != Some(sender) {
                    self.announced = Some(sender);
                    self.process(sender.announcement(self.address), now);
                }
                if let Some(port) = opens {
                    self.listen((sender.address(), port), now);
                }
            }
        }
        frame::redirect(&mut frame);
        self.process(frame, now);
        self.work(now, answer);
        true
    }

    /// Serves the connections and sends what is due.
    pub fn work(&mut self, now: Instant, mut answer: impl FnMut(&Request<'_>) -> Response) {
        for (handle, connection) in &mut self.connections {
            let socket = self.sockets.get_mut::<Socket<'_>>(*handle);
            if socket.is_active() {
                connection.serve(socket, now, &mut answer);
            } else if socket.remote_endpoint().is_some() && now >= connection.deadline {
                // Its last packet cannot leave, because the sender does not tell its hardware address.
                *socket = new_socket();
            }
        }
        self.interface.poll_egress(self.time(now), &mut self.link, &mut self.sockets);
        for (handle, connection) in &mut self.connections {
            let is_open = self.sockets.get::<Socket<'_>>(*handle).is_active();
            match (connection.is_counted, is_open) {
                (false, true) => self.made += 1,
                (true, false) => self.ended += 1,
                (false, false) | (true, true) => {}
            }
            connection.is_counted = is_open;
        }
    }

    /// Takes the numbers of connections that were made and that ended since the last call.
    pub fn take_connections(&mut self) -> (u64, u64) {
        (std::mem::take(&mut self.made), std::mem::take(&mut self.ended))
    }

    /// The number of connections that are open.
    pub fn open_connections(&self) -> u64 {
        self.connections.iter().filter(|(_, connection)| connection.is_counted).count() as u64
    }

    /// Takes the next frame to the guest.
    pub fn next_frame(&mut self) -> Option<Vec<u8>> {
        self.link.take()
    }

    /// Whether a frame waits for the guest.
    pub fn has_waiting(&self) -> bool {
        self.link.has_waiting()
    }

    /// When [`Stack::work`] has something to do without a frame of the guest.
    pub fn next_work(&mut self, now: Instant) -> Option<Instant> {
        let sockets = &self.sockets;
        let is_in_use = |handle| sockets.get::<Socket<'_>>(handle).remote_endpoint().is_some();
        let in_use = self.connections.iter().filter(|(handle, _)| is_in_use(*handle));
        let deadline = in_use.map(|(_, connection)| connection.deadline).min();
        if self.link.is_full() {
            // The guest's buffers come first.
            return deadline;
        }
        let delay = self.interface.poll_delay(self.time(now), &self.sockets);
        let due = delay.map(|delay| now + delay.into());
        deadline.into_iter().chain(due).min()
    }

    /// Lets the stack process one frame.
    fn process(&mut self, frame: Vec<u8>, now: Instant) {
        self.link.put(frame);
        self.interface.poll_ingress_single(self.time(now), &mut self.link, &mut self.sockets);
    }

    /// Makes one socket listen for this client.
    fn listen(&mut self, client: (Ipv4Addr, u16), now: Instant) {
        let sockets = &self.sockets;
        let client = IpEndpoint::from(client);
        let opening = |handle| {
            let socket = sockets.get::<Socket<'_>>(handle);
            socket.state() == State::SynReceived && socket.remote_endpoint() == Some(client)
        };
        // A client that repeats its request has a socket.
        if self.connections.iter().any(|(handle, _)| opening(*handle)) {
            return;
        }
        let state = |handle| sockets.get::<Socket<'_>>(handle).state();
        if let Some((_, waiting)) =
            self.connections.iter_mut().find(|(handle, _)| state(*handle) == State::Listen)
        {
            // It may have listened for long. The time of its connection begins now.
            *waiting = Connection::new(now);
            return;
        }
        let is_free = |handle| matches!(state(handle), State::Closed | State::TimeWait);
        let free = self.connections.iter().position(|(handle, _)| is_free(*handle));
        let place = match free {
            None if self.connections.len() < MOST_CONNECTIONS => {
                let handle = self.sockets.add(new_socket());
                self.connections.push((handle, Connection::new(now)));
                self.connections.len() - 1
            }
            None => {
                let soonest = (0..self.connections.len()).min_by_key(|at| self.connections[*at].1.deadline);
                soonest.unwrap_or_default()
            }
            Some(free) => free,
        };
        let (handle, connection) = &mut self.connections[place];
        self.ended += u64::from(connection.is_counted);
        *connection = Connection::new(now);
        // A new one, because the old one may have a last packet to send.
        let fresh = self.sockets.get_mut::<Socket<'_>>(*handle);
        *fresh = new_socket();
        // Fails only for port 0 and an open socket.
        let _ = fresh.listen(PORT);
    }

    fn time(&self, now: Instant) -> StackTime {
        let elapsed = now.saturating_duration_since(self.epoch).as_micros();
        StackTime::from_micros(i64::try_from(elapsed).unwrap_or(i64::MAX))
    }
}

fn new_socket() -> Socket<'static> {
    let buffer = |len| SocketBuffer::new(vec![0; len]);
    let mut socket = Socket::new(buffer(LONGEST), buffer(SEND_BUFFER));
    // Answers carry the acknowledgements of their requests, and are sent whole.
    socket.set_ack_delay(None);
    socket.set_nagle_enabled(false);
    socket
}
