//! A guest, the relay, a server, the wires between them, and the time of all.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::socket::tcp::State;
use smoltcp::wire::{IpProtocol, IpRepr, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber};
use volt_policy::{Mac, RequestHead};

use super::super::end::{BufferSizes, Endpoint, LARGEST_RECEIVE_BUFFER, TcpChecksum, TcpEnd};
use super::super::frame::{TcpFrame, frame_of};
use super::super::{RelayCounts, Relays};

pub const GUEST_MAC: Mac = [2, 0, 0, 0, 0, 1];
pub const ROUTER_MAC: Mac = [2, 0, 0, 0, 0, 2];
pub const V4: (&str, &str) = ("10.0.0.2", "192.0.2.1");
pub const V6: (&str, &str) = ("2001:db8:1::2", "2001:db8:2::1");
const SIZES: BufferSizes = BufferSizes { receive: LARGEST_RECEIVE_BUFFER, send: 64 << 10 };

/// A wire that loses, repeats and reorders some of each hundred frames.
#[derive(Default)]
pub struct Wire {
    pub lost: u64,
    pub repeated: u64,
    pub reordered: u64,
    random: u64,
    /// One of each direction.
    late: [Option<Vec<u8>>; 2],
    /// The frames that were sent.
    pub sent: Vec<Vec<u8>>,
}

impl Wire {
    fn chance(&mut self, percent: u64) -> bool {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) % 100 < percent
    }

    /// The frames that arrive when one is sent.
    fn pass(&mut self, frame: Vec<u8>) -> Vec<Vec<u8>> {
        self.sent.push(frame.clone());
        let mut arriving = Vec::new();
        let (lost, repeated, reordered) = (self.lost, self.repeated, self.reordered);
        let direction = usize::from(frame[..6] == GUEST_MAC);
        if self.chance(reordered) && self.late[direction].is_none() {
            self.late[direction] = Some(frame);
            return arriving;
        }
        if !self.chance(lost) {
            if self.chance(repeated) {
                arriving.push(frame.clone());
            }
            arriving.push(frame);
        }
        arriving.extend(self.late[direction].take());
        arriving
    }

    /// Whether a frame was sent with RST.
    pub fn has_reset(&self) -> bool {
        self.sent.iter().any(|frame| TcpFrame::parse(frame).unwrap().flags.rst)
    }
}

/// A program at an end: what it has to send, and what it got.
pub struct Peer {
    pub end: TcpEnd,
    pub unsent: Vec<u8>,
    pub got: Vec<u8>,
    /// It ends behind its last byte.
    pub ends: bool,
    pub reads: bool,
}

impl Peer {
    fn new(end: TcpEnd) -> Self {
        Self { end, unsent: Vec::new(), got: Vec::new(), ends: false, reads: true }
    }

    fn work(&mut self, now: Instant) {
        let socket = self.end.socket_mut();
        if socket.may_send() {
            let sent = socket.send_slice(&self.unsent).unwrap();
            self.unsent.drain(..sent);
            if self.ends && self.unsent.is_empty() {
                socket.close();
            }
        }
        while self.reads && socket.can_recv() {
            socket.recv(|bytes| (bytes.len(), self.got.extend_from_slice(bytes))).unwrap();
        }
        self.end.work(now);
    }

    pub fn state(&self) -> State {
        self.end.socket().state()
    }
}

pub struct Bench {
    pub relays: Relays,
    pub guest: Peer,
    pub server: Peer,
    pub ends: (Endpoint, Endpoint),
    pub guest_wire: Wire,
    pub far_wire: Wire,
    /// Hosts that were judged, in order.
    pub judged: Vec<String>,
    pub now: Instant,
    /// Frames to the server stay on the wire.
    pub is_far_silent: bool,
}

/// Denies hosts whose name begins with "denied".
pub fn judge(judged: &mut Vec<String>) -> impl FnMut(&RequestHead, Endpoint) -> Result<(), String> {
    |head, _| {
        let name = match &head.host {
            volt_policy::Host::Name(name) => name.to_string(),
            volt_policy::Host::Address(address) => address.to_string(),
        };
        let is_denied = name.starts_with("denied");
        judged.push(name);
        if is_denied { Err("rule 7 denies this host".to_owned()) } else { Ok(()) }
    }
}

/// Two ends of one family.
pub fn ends_of((guest, far): (&str, &str), port: u16) -> (Endpoint, Endpoint) {
    let parse = |address: &str| address.parse::<IpAddr>().unwrap();
    ((parse(guest), port), (parse(far), 80))
}

pub fn connecting((guest, far): (Endpoint, Endpoint), now: Instant) -> TcpEnd {
    TcpEnd::connecting(guest, far, SIZES, 1500, 7, now).unwrap()
}

impl Bench {
    pub fn new(family: (&str, &str)) -> Self {
        let (now, ends) = (Instant::now(), ends_of(family, 4000));
        let guest = Peer::new(connecting(ends, now));
        let server = Peer::new(TcpEnd::listening(ends.1, SIZES, 1500, 9, now).unwrap());
        Self {
            relays: Relays::new(1500, 1500),
            guest,
            server,
            ends,
            guest_wire: Wire::default(),
            far_wire: Wire { random: 1, ..Wire::default() },
            judged: Vec::new(),
            now,
            is_far_silent: false,
        }
    }

    /// A guest that is connected to the server.
    pub fn connected() -> Self {
        let mut bench = Self::new(V4);
        bench.settle();
        assert_eq!(bench.guest.state(), State::Established);
        bench
    }

    /// Takes a frame of the guest.
    pub fn receive_from_guest(&mut self, frame: &[u8]) {
        self.give(frame, TcpChecksum::Verified);
    }

    /// Gives the relay a frame of the guest. Returns whether it is of a connection of the relay.
    pub fn give(&mut self, frame: &[u8], checksum: TcpChecksum) -> bool {
        let judge = &mut judge(&mut self.judged);
        self.relays.receive_from_guest(frame, checksum, self.now, judge)
    }

    /// Takes the frames of the relay. Returns whether there were any.
    fn deliver(&mut self) -> bool {
        let mut any = false;
        while let Some(frame) = self.relays.next_to_guest() {
            any = true;
            for frame in self.guest_wire.pass(frame) {
                let segment = TcpFrame::parse(&frame).unwrap();
                assert_eq!(segment.macs, (ROUTER_MAC, GUEST_MAC));
                self.guest.end.receive(segment.packet, TcpChecksum::Verified, self.now);
            }
        }
        while let Some(frame) = self.relays.next_to_far() {
            any = true;
            for frame in self.far_wire.pass(frame) {
                let segment = TcpFrame::parse(&frame).unwrap();
                assert_eq!(segment.macs, (GUEST_MAC, ROUTER_MAC));
                if !self.is_far_silent {
                    self.server.end.receive(segment.packet, TcpChecksum::Verified, self.now);
                }
            }
        }
        any
    }

    /// Takes the frames of the server. Returns whether there were any.
    fn deliver_of_server(&mut self) -> bool {
        let mut any = false;
        while let Some(packet) = self.server.end.next_packet() {
            any = true;
            let frame = frame_of(&packet, (ROUTER_MAC, GUEST_MAC), self.ends.0.0);
            for frame in self.far_wire.pass(frame) {
                let judge = &mut judge(&mut self.judged);
                self.relays.receive_from_far(&frame, TcpChecksum::Verified, self.now, judge);
            }
        }
        any
    }

    /// Exchanges frames until all are silent.
    pub fn settle(&mut self) {
        loop {
            self.guest.work(self.now);
            self.server.work(self.now);
            let mut any = false;
            while let Some(packet) = self.guest.end.next_packet() {
                any = true;
                let frame = frame_of(&packet, (GUEST_MAC, ROUTER_MAC), self.ends.0.0);
                for frame in self.guest_wire.pass(frame) {
                    self.receive_from_guest(&frame);
                }
            }
            any |= self.deliver_of_server();
            self.relays.work(self.now, &mut judge(&mut self.judged));
            any |= self.deliver();
            if !any {
                return;
            }
        }
    }

    /// Exchanges frames of the relay and the server, while the guest is a test that makes its own.
    pub fn settle_without_guest(&mut self) {
        loop {
            self.server.work(self.now);
            let any = self.deliver_of_server();
            self.relays.work(self.now, &mut judge(&mut self.judged));
            let any = any | self.deliver();
            if !any {
                return;
            }
        }
    }

    /// Lets time pass, and does what becomes due.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.settle();
            let now = self.now;
            let due = [self.relays.next_work(now), self.guest.end.next_work(now)];
            let due = due.into_iter().chain([self.server.end.next_work(now)]).flatten().min();
            let Some(next) = due.filter(|next| *next <= end) else { break };
            self.now = next.max(now + Duration::from_millis(1));
        }
        self.now = end;
        self.settle();
    }

    /// Lets the guest send bytes.
    pub fn send(&mut self, bytes: &[u8]) {
        self.guest.unsent.extend_from_slice(bytes);
        self.settle();
    }

    /// Lets the server send bytes.
    pub fn answer(&mut self, bytes: &[u8]) {
        self.server.unsent.extend_from_slice(bytes);
        self.settle();
    }

    /// The bytes that the server got since the last call, as text.
    pub fn requests(&mut self) -> String {
        String::from_utf8(std::mem::take(&mut self.server.got)).unwrap()
    }

    /// The bytes that the guest got since the last call, as text.
    pub fn responses(&mut self) -> String {
        String::from_utf8(std::mem::take(&mut self.guest.got)).unwrap()
    }

    pub fn counts(&mut self) -> RelayCounts {
        self.relays.take_counts()
    }

    /// Whether the relay has a connection of the guest.
    pub fn is_known(&self) -> bool {
        self.relays.is_known(self.ends.0, self.ends.1)
    }
}

/// A request without a body.
pub fn get(host: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

/// A segment without options. Its ports are those of its packet.
pub const PLAIN: TcpRepr<'_> = TcpRepr {
    src_port: 0,
    dst_port: 0,
    control: TcpControl::None,
    seq_number: TcpSeqNumber(0),
    ack_number: None,
    window_len: 0xffff,
    window_scale: None,
    max_seg_size: None,
    sack_permitted: false,
    sack_ranges: [None; 3],
    timestamp: None,
    payload: b"",
};

/// A packet with a segment of the test's choice.
pub fn packet(from: Endpoint, to: Endpoint, segment: &TcpRepr<'_>) -> Vec<u8> {
    let segment = TcpRepr { src_port: from.1, dst_port: to.1, ..*segment };
    let (from, to) = (from.0.into(), to.0.into());
    let ip = IpRepr::new(from, to, IpProtocol::Tcp, segment.buffer_len(), 64);
    let mut packet = vec![0; ip.header_len() + segment.buffer_len()];
    let capabilities = ChecksumCapabilities::default();
    ip.emit(&mut packet[..], &capabilities);
    let header_len = ip.header_len();
    segment.emit(&mut TcpPacket::new_unchecked(&mut packet[header_len..]), &from, &to, &capabilities);
    packet
}
