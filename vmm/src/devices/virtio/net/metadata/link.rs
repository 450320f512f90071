//! The wire between the guest and the TCP stack: frames of the guest go in one by one, and those of the stack
//! wait until the guest has buffers.

use std::collections::VecDeque;

use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;

/// Most frames that wait for the guest. The stack keeps the rest.
const MOST_WAITING: usize = 64;
/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;

/// The wire.
#[derive(Debug)]
pub(super) struct Link {
    /// Bytes of the longest frame to the guest.
    longest: usize,
    from_guest: Option<Vec<u8>>,
    to_guest: VecDeque<Vec<u8>>,
}

impl Link {
    /// A wire for packets of at most `mtu` bytes.
    pub fn new(mtu: u16) -> Self {
        Self { longest: usize::from(mtu) + ETHERNET, from_guest: None, to_guest: VecDeque::new() }
    }

    /// Puts a frame of the guest on the wire, for the stack to take.
    pub fn put(&mut self, frame: Vec<u8>) {
        self.from_guest = Some(frame);
    }

    /// Takes the next frame to the guest.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        self.to_guest.pop_front()
    }

    /// Whether a frame waits for the guest.
    pub fn has_waiting(&self) -> bool {
        !self.to_guest.is_empty()
    }

    /// Whether the stack has to wait until the guest takes frames.
    pub fn is_full(&self) -> bool {
        self.to_guest.len() >= MOST_WAITING
    }
}

/// A frame of the guest.
pub(super) struct FromGuest(Vec<u8>);

/// Room for a frame to the guest.
pub(super) struct ToGuest<'a>(&'a mut VecDeque<Vec<u8>>);

impl RxToken for FromGuest {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, act: F) -> R {
        act(&self.0)
    }
}

impl TxToken for ToGuest<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, act: F) -> R {
        let mut frame = vec![0; len];
        let result = act(&mut frame);
        self.0.push_back(frame);
        result
    }
}

impl Device for Link {
    type RxToken<'a> = FromGuest;
    type TxToken<'a> = ToGuest<'a>;

    fn receive(&mut self, _: Instant) -> Option<(FromGuest, ToGuest<'_>)> {
        // A frame that comes while the guest takes no answers is lost, as on a wire.
        let frame = self.from_guest.take().filter(|_| self.to_guest.len() < MOST_WAITING)?;
        Some((FromGuest(frame), ToGuest(&mut self.to_guest)))
    }

    fn transmit(&mut self, _: Instant) -> Option<ToGuest<'_>> {
        (!self.is_full()).then_some(ToGuest(&mut self.to_guest))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = self.longest;
        // A guest with checksum offload leaves them out, and nothing on this wire damages a frame.
        capabilities.checksum.ipv4 = Checksum::Tx;
        capabilities.checksum.tcp = Checksum::Tx;
        capabilities
    }
}
