//! One end of one TCP connection, by smoltcp: packets of IP go in and out, and its owner moves the bytes.
//!
//! ```text
//!   packets ──receive──> TcpEnd ──socket──> bytes
//!           <─next_packet─
//! ```
//!
//! An end has an interface of its own, without neighbours and routes: all of its packets go to its peer.

use std::fmt;
use std::net::IpAddr;
use std::time::Instant;

use smoltcp::iface::{Config, Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Instant as StackTime;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr, IpProtocol, Ipv4Packet, Ipv6Packet, TcpPacket};

use super::packets::{MOST_WAITING, PacketDevice, PacketQueue};

/// Largest receive buffer in bytes. Beyond it the window is scaled. smoltcp 0.14 then believes that it gave
/// the peer more than the buffer, from its SYN up to its next segment, and panics if the peer uses that.
pub(crate) const LARGEST_RECEIVE_BUFFER: usize = 0xffff;
/// Least MTU that IPv4 allows.
const LEAST_MTU: u16 = 68;

/// An address and a port.
pub(crate) type Endpoint = (IpAddr, u16);

/// Bytes of the buffers of an end. Nothing is allocated before the end is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BufferSizes {
    /// At most [`LARGEST_RECEIVE_BUFFER`].
    pub receive: usize,
    pub send: usize,
}

/// The checksum of an arriving segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TcpChecksum {
    /// It is there, and a segment with a wrong one is dropped.
    Verified,
    /// The sender may have left it to the host.
    Trusted,
}

/// See the module.
pub(crate) struct TcpEnd {
    interface: Interface,
    /// Has one socket.
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    mtu: usize,
    leaving: PacketQueue,
    is_reset: bool,
    /// The start of the stack's time.
    epoch: Instant,
}

impl fmt::Debug for TcpEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpEnd").field("state", &self.socket().state()).finish_non_exhaustive()
    }
}

impl TcpEnd {
    /// Makes an end that waits for its peer. Packets have at most `mtu` bytes, and sequence numbers come from
    /// `seed`. Returns `None` if `own` is no address and port of one host.
    pub fn listening(own: Endpoint, sizes: BufferSizes, mtu: u16, seed: u64, now: Instant) -> Option<Self> {
        let mut end = Self::closed(own, sizes, mtu, seed, now)?;
        end.socket_mut().listen(own).ok()?;
        Some(end)
    }

    /// Makes an end that connects to `peer`. For the rest see [`TcpEnd::listening`].
    pub fn connecting(
        own: Endpoint,
        peer: Endpoint,
        sizes: BufferSizes,
        mtu: u16,
        seed: u64,
        now: Instant,
    ) -> Option<Self> {
        let mut end = Self::closed(own, sizes, mtu, seed, now)?;
        let is_of_one_host = IpAddress::from(peer.0).is_unicast();
        let socket = end.sockets.get_mut::<Socket<'_>>(end.handle);
        socket.connect(end.interface.context(), peer, own).ok().filter(|()| is_of_one_host)?;
        Some(end)
    }

    fn closed(own: Endpoint, sizes: BufferSizes, mtu: u16, seed: u64, now: Instant) -> Option<Self> {
        let address = IpAddress::from(own.0);
        if !address.is_unicast() {
            return None;
        }
        let (mtu, mut leaving) = (usize::from(mtu.max(LEAST_MTU)), PacketQueue::default());
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = seed;
        let mut device = PacketDevice { mtu, arriving: None, leaving: &mut leaving };
        let mut interface = Interface::new(config, &mut device, StackTime::ZERO);
        interface.update_ip_addrs(|addresses| {
            // Every peer is on the link. There is room for one address.
            let _ = addresses.push(IpCidr::new(address, 0));
        });
        let buffer = |len| SocketBuffer::new(vec![0; len]);
        let mut socket = Socket::new(buffer(sizes.receive.min(LARGEST_RECEIVE_BUFFER)), buffer(sizes.send));
        socket.set_ack_delay(None);
        socket.set_nagle_enabled(false);
        let mut sockets = SocketSet::new(Vec::new());
        let handle = sockets.add(socket);
        Some(Self { interface, sockets, handle, mtu, leaving, is_reset: false, epoch: now })
    }

    /// Takes a packet of the peer, without an Ethernet header. Returns whether it was a whole segment of TCP.
    pub fn receive(&mut self, packet: &[u8], checksum: TcpChecksum, now: Instant) -> bool {
        if !is_whole_segment(packet, checksum) {
            return false;
        }
        let (time, before) = (self.time(now), self.socket().state());
        let mut device = PacketDevice { mtu: self.mtu, arriving: Some(packet), leaving: &mut self.leaving };
        self.interface.poll_ingress_single(time, &mut device, &mut self.sockets);
        self.note_reset(before);
        // The peer's next segment is judged by the window of this answer.
        self.work(now);
        true
    }

    /// Sends what is due, as far as packets may wait.
    pub fn work(&mut self, now: Instant) {
        let (time, before) = (self.time(now), self.socket().state());
        let most = if self.only_acknowledges() { 1 } else { MOST_WAITING };
        let mut device = PacketDevice { mtu: self.mtu, arriving: None, leaving: &mut self.leaving };
        for _ in 0..most {
            let is_full = device.leaving.is_full();
            if is_full || self.interface.poll_egress(time, &mut device, &mut self.sockets) == PollResult::None
            {
                break;
            }
        }
        self.note_reset(before);
    }

    /// The socket, for its bytes and its state.
    pub fn socket(&self) -> &Socket<'static> {
        self.sockets.get(self.handle)
    }

    /// The socket, to move bytes or to end the connection.
    pub fn socket_mut(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    /// Takes the next packet to the peer, without an Ethernet header.
    pub fn next_packet(&mut self) -> Option<Vec<u8>> {
        self.leaving.pop()
    }

    /// Whether a packet waits.
    pub fn has_waiting(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// When [`TcpEnd::work`] has something to do without a packet of the peer. It may be `now`.
    pub fn next_work(&mut self, now: Instant) -> Option<Instant> {
        if self.leaving.is_full() || self.only_acknowledges() {
            return None;
        }
        let delay = self.interface.poll_delay(self.time(now), &self.sockets);
        delay.map(|delay| now + delay.into())
    }

    /// Whether the peer reset the connection, or was silent for the timeout of the socket.
    pub fn is_reset(&self) -> bool {
        self.is_reset
    }

    /// Whether the peer sends no more bytes than have arrived.
    pub fn has_peer_ended(&self) -> bool {
        has_peer_ended(self.socket())
    }

    /// Whether nothing is left of the connection but late packets of the peer.
    pub fn is_over(&self) -> bool {
        matches!(self.socket().state(), State::Closed | State::TimeWait)
    }

    /// Whether nothing is left of the connection at all.
    pub fn is_done(&self) -> bool {
        let socket = self.socket();
        socket.state() == State::Closed && socket.remote_endpoint().is_none() && !self.has_waiting()
    }

    /// Whether nothing is left but to acknowledge bytes of the peer. smoltcp 0.14 keeps a timer here if the
    /// peer acknowledged a FIN early, with a window of no bytes. It sends a packet at each poll.
    fn only_acknowledges(&self) -> bool {
        self.socket().state() == State::FinWait2
    }

    /// Notes a step to a state that the owner and the order of a close do not lead to.
    fn note_reset(&mut self, before: State) {
        let is_gone = matches!(self.socket().state(), State::Closed | State::Listen);
        let was_gone = matches!(before, State::Closed | State::Listen | State::LastAck | State::TimeWait);
        self.is_reset |= is_gone && !was_gone;
    }

    fn time(&self, now: Instant) -> StackTime {
        let elapsed = now.saturating_duration_since(self.epoch).as_micros();
        StackTime::from_micros(i64::try_from(elapsed).unwrap_or(i64::MAX))
    }
}

/// Whether the peer of a socket sends no more bytes than have arrived.
pub(super) fn has_peer_ended(socket: &Socket<'_>) -> bool {
    matches!(socket.state(), State::CloseWait | State::Closing | State::LastAck | State::TimeWait)
}

/// Whether a packet is no fragment, and has nothing but TCP, with a right checksum if that is there.
pub(crate) fn is_whole_segment(packet: &[u8], checksum: TcpChecksum) -> bool {
    let (source, target, protocol, segment) = match packet.first().map(|first| first >> 4) {
        Some(4) => {
            let Ok(packet) = Ipv4Packet::new_checked(packet) else { return false };
            if packet.more_frags() || packet.frag_offset() != 0 {
                return false;
            }
            let ends = (packet.src_addr().into(), packet.dst_addr().into());
            (ends.0, ends.1, packet.next_header(), packet.payload())
        }
        Some(6) => {
            let Ok(packet) = Ipv6Packet::new_checked(packet) else { return false };
            let ends: (IpAddress, IpAddress) = (packet.src_addr().into(), packet.dst_addr().into());
            (ends.0, ends.1, packet.next_header(), packet.payload())
        }
        _ => return false,
    };
    let Ok(segment) = TcpPacket::new_checked(segment) else { return false };
    protocol == IpProtocol::Tcp
        && (checksum == TcpChecksum::Trusted || segment.verify_checksum(&source, &target))
}
