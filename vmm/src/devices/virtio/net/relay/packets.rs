//! Packets of one end: the one that arrives, and those that wait until they leave.

use std::collections::VecDeque;

use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;

/// Most packets that wait, and most bytes of them. The stack keeps the rest.
pub(super) const MOST_WAITING: usize = 64;
const MOST_WAITING_BYTES: usize = 128 << 10;

/// Packets that wait.
#[derive(Debug, Default)]
pub(super) struct PacketQueue {
    packets: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl PacketQueue {
    /// Takes the next packet.
    pub fn pop(&mut self) -> Option<Vec<u8>> {
        let packet = self.packets.pop_front()?;
        self.bytes -= packet.len();
        Some(packet)
    }

    /// Whether there is no packet.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Whether the stack has to wait until packets leave.
    pub fn is_full(&self) -> bool {
        self.packets.len() >= MOST_WAITING || self.bytes >= MOST_WAITING_BYTES
    }
}

/// The network as the stack sees it during one call.
pub(super) struct PacketDevice<'a> {
    /// Bytes of the longest packet that leaves.
    pub mtu: usize,
    /// The packet that arrives.
    pub arriving: Option<&'a [u8]>,
    pub leaving: &'a mut PacketQueue,
}

/// A packet that arrives.
pub(super) struct Arriving<'a>(&'a [u8]);

/// Room for a packet that leaves.
pub(super) struct Room<'a>(&'a mut PacketQueue);

impl RxToken for Arriving<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, act: F) -> R {
        act(self.0)
    }
}

impl TxToken for Room<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, act: F) -> R {
        let mut packet = vec![0; len];
        let result = act(&mut packet);
        self.0.bytes += len;
        self.0.packets.push_back(packet);
        result
    }
}

impl Device for PacketDevice<'_> {
    type RxToken<'b>
        = Arriving<'b>
    where
        Self: 'b;
    type TxToken<'b>
        = Room<'b>
    where
        Self: 'b;

    fn receive(&mut self, _: Instant) -> Option<(Arriving<'_>, Room<'_>)> {
        // A packet without room for its answer is lost, as on a wire.
        let packet = self.arriving.take().filter(|_| !self.leaving.is_full())?;
        Some((Arriving(packet), Room(self.leaving)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Room<'_>> {
        (!self.leaving.is_full()).then_some(Room(self.leaving))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.mtu;
        // The caller knows whether an arriving packet has its checksum yet.
        capabilities.checksum.ipv4 = Checksum::Tx;
        capabilities.checksum.tcp = Checksum::Tx;
        capabilities
    }
}
