//! Credit (virtio 1.2, section 5.10.6.3): a side sends no more than the other has buffer for. The counters
//! count all bytes since the start and wrap, so only their differences have a meaning.

use super::packet::PacketHeader;

/// Bytes of the guest that are kept at most for a host that does not take them.
pub(super) const BUFFER: u32 = 256 << 10;
/// Freed bytes after which the guest is told. It sends only as much as it knows of.
const UPDATE_AFTER: u32 = BUFFER / 4;

/// Credit of one connection, in both directions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Credit {
    /// Bytes received from the guest.
    received: u32,
    /// Received bytes that were forwarded to the host.
    forwarded: u32,
    /// Forwarded bytes that the guest knows of.
    announced: u32,
    /// Bytes sent to the guest.
    sent: u32,
    guest_buffer: u32,
    /// Sent bytes that the guest has forwarded.
    guest_forwarded: u32,
}

impl Credit {
    /// Takes over the guest's credit from a packet.
    pub fn update_from_guest(&mut self, header: &PacketHeader) {
        (self.guest_buffer, self.guest_forwarded) = (header.buf_alloc, header.fwd_cnt);
    }

    /// Returns how many bytes the guest can take. Returns 0 if it claims to have forwarded more than it got.
    pub fn available(&self) -> u32 {
        self.guest_buffer.saturating_sub(self.sent.wrapping_sub(self.guest_forwarded))
    }

    /// Counts bytes for the guest.
    pub fn send(&mut self, bytes: u32) {
        self.sent = self.sent.wrapping_add(bytes);
    }

    /// Counts bytes from the guest. Returns false if they exceed the credit that it knows of.
    #[must_use]
    pub fn receive(&mut self, bytes: u32) -> bool {
        let unanswered = self.received.wrapping_sub(self.announced);
        self.received = self.received.wrapping_add(bytes);
        bytes <= BUFFER.saturating_sub(unanswered)
    }

    /// Counts bytes that the host has taken, or that are lost.
    pub fn forward(&mut self, bytes: u32) {
        self.forwarded = self.forwarded.wrapping_add(bytes);
    }

    /// Sets the credit in a header to the guest.
    pub fn fill_header(&mut self, header: &mut PacketHeader) {
        self.announced = self.forwarded;
        (header.buf_alloc, header.fwd_cnt) = (BUFFER, self.forwarded);
    }

    /// Returns whether the guest needs an update even without another packet.
    pub fn is_update_due(&self) -> bool {
        self.forwarded.wrapping_sub(self.announced) >= UPDATE_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns counters that are about to wrap.
    fn about_to_wrap() -> Credit {
        let near = u32::MAX - 100;
        Credit {
            received: near,
            forwarded: near,
            announced: near,
            sent: near,
            guest_forwarded: near,
            guest_buffer: 0,
        }
    }

    #[test]
    fn guest_gets_no_more_than_its_credit() {
        for (mut credit, start) in [(Credit::default(), 0), (about_to_wrap(), u32::MAX - 100)] {
            assert_eq!(credit.available(), 0);
            credit.update_from_guest(&PacketHeader {
                buf_alloc: 1000,
                fwd_cnt: start,
                ..PacketHeader::default()
            });
            credit.send(900);
            assert_eq!(credit.available(), 100);
            credit.update_from_guest(&PacketHeader {
                buf_alloc: 1000,
                fwd_cnt: start.wrapping_add(500),
                ..PacketHeader::default()
            });
            assert_eq!(credit.available(), 600);
            credit.update_from_guest(&PacketHeader {
                buf_alloc: 10,
                fwd_cnt: start.wrapping_add(500),
                ..PacketHeader::default()
            });
            assert_eq!(credit.available(), 0, "a buffer that shrank");
            credit.update_from_guest(&PacketHeader {
                buf_alloc: 1000,
                fwd_cnt: start.wrapping_add(901),
                ..PacketHeader::default()
            });
            assert_eq!(credit.available(), 0, "the guest claims more than it got");
        }
    }

    #[test]
    fn guest_may_send_its_known_credit() {
        for mut credit in [Credit::default(), about_to_wrap()] {
            assert!(credit.receive(BUFFER - 1) && credit.receive(1));
            credit.forward(UPDATE_AFTER - 1);
            assert!(!credit.is_update_due());
            credit.forward(1);
            assert!(credit.is_update_due());
            assert!(!credit.clone().receive(1), "the guest does not know of the credit");
            credit.fill_header(&mut PacketHeader::default());
            assert!(!credit.is_update_due() && !credit.clone().receive(UPDATE_AFTER + 1));
            assert!(credit.receive(UPDATE_AFTER));
        }
    }
}
