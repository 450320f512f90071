//! Credit (virtio 1.2, section 5.10.6.3): nobody sends more than the other side has buffer for. The counters count all bytes
//! there ever were and wrap, so only their differences mean something.

use super::packet::Header;

/// The most bytes from the guest that are kept for a host that does not take them.
pub(super) const BUFFER: u32 = 256 << 10;
/// So many bytes may be free again before the guest is told, which sends no sooner than it knows.
const WORTH_TELLING: u32 = BUFFER / 4;

/// One connection's credit, both ways.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Credit {
    /// From the guest in all.
    received: u32,
    /// Of which to the host.
    forwarded: u32,
    /// Of which the guest has heard.
    told: u32,
    /// To the guest in all.
    sent: u32,
    guest_buffer: u32,
    /// Of which it has passed on.
    guest_forwarded: u32,
}

impl Credit {
    /// The guest says what it has.
    pub fn hear(&mut self, header: &Header) {
        (self.guest_buffer, self.guest_forwarded) = (header.buf_alloc, header.fwd_cnt);
    }

    /// How many bytes the guest takes. None when it says that it passed on more than it got.
    pub fn left(&self) -> u32 {
        self.guest_buffer.saturating_sub(self.sent.wrapping_sub(self.guest_forwarded))
    }

    /// These go to the guest.
    pub fn send(&mut self, bytes: u32) {
        self.sent = self.sent.wrapping_add(bytes);
    }

    /// These come from the guest. False when it was not told that there is room for them.
    #[must_use]
    pub fn receive(&mut self, bytes: u32) -> bool {
        let unanswered = self.received.wrapping_sub(self.told);
        self.received = self.received.wrapping_add(bytes);
        bytes <= BUFFER.saturating_sub(unanswered)
    }

    /// These are the host's now, or nobody's.
    pub fn forward(&mut self, bytes: u32) {
        self.forwarded = self.forwarded.wrapping_add(bytes);
    }

    /// What a header to the guest says.
    pub fn tell(&mut self, header: &mut Header) {
        self.told = self.forwarded;
        (header.buf_alloc, header.fwd_cnt) = (BUFFER, self.forwarded);
    }

    /// Whether it is time to tell even without another reason for a packet.
    pub fn is_worth_telling(&self) -> bool {
        self.forwarded.wrapping_sub(self.told) >= WORTH_TELLING
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counters that are about to wrap.
    fn late() -> Credit {
        let near = u32::MAX - 100;
        Credit {
            received: near,
            forwarded: near,
            told: near,
            sent: near,
            guest_forwarded: near,
            guest_buffer: 0,
        }
    }

    #[test]
    fn the_guest_gets_no_more_than_it_has_room_for() {
        for (mut credit, start) in [(Credit::default(), 0), (late(), u32::MAX - 100)] {
            assert_eq!(credit.left(), 0);
            credit.hear(&Header { buf_alloc: 1000, fwd_cnt: start, ..Header::default() });
            credit.send(900);
            assert_eq!(credit.left(), 100);
            credit.hear(&Header { buf_alloc: 1000, fwd_cnt: start.wrapping_add(500), ..Header::default() });
            assert_eq!(credit.left(), 600);
            credit.hear(&Header { buf_alloc: 10, fwd_cnt: start.wrapping_add(500), ..Header::default() });
            assert_eq!(credit.left(), 0, "a buffer that shrank");
            credit.hear(&Header { buf_alloc: 1000, fwd_cnt: start.wrapping_add(901), ..Header::default() });
            assert_eq!(credit.left(), 0, "more than it got");
        }
    }

    #[test]
    fn the_guest_may_send_what_it_was_told() {
        for mut credit in [Credit::default(), late()] {
            assert!(credit.receive(BUFFER - 1) && credit.receive(1));
            credit.forward(WORTH_TELLING - 1);
            assert!(!credit.is_worth_telling());
            credit.forward(1);
            assert!(credit.is_worth_telling());
            assert!(!credit.clone().receive(1), "it has not heard of it");
            credit.tell(&mut Header::default());
            assert!(!credit.is_worth_telling() && !credit.clone().receive(WORTH_TELLING + 1));
            assert!(credit.receive(WORTH_TELLING));
        }
    }
}
