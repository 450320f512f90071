//! A guest and a server that send segments of any kind.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use smoltcp::wire::{Ipv4Packet, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber};

use super::super::Relays;
use super::super::end::{Endpoint, TcpChecksum};
use super::super::frame::{TcpFrame, frame_of};
use super::bench::{GUEST_MAC, PLAIN, ROUTER_MAC, V4, ends_of, get, judge, packet};

/// A segment, as it differs from the one that is due.
#[derive(Clone, Copy, Debug)]
struct Odd {
    is_of_guest: bool,
    control: TcpControl,
    sequence: i32,
    acknowledged: Option<i32>,
    window: u16,
    scale: Option<u8>,
    mss: Option<u16>,
    payload: usize,
    len: usize,
    delay: u64,
    /// The frames of the relay are taken.
    drains: bool,
}

/// A side of the connection.
struct Side {
    own: Endpoint,
    peer: Endpoint,
    /// The numbers of its next byte, and of the next byte of the relay.
    next: i32,
    expected: i32,
}

impl Side {
    fn packet(&mut self, odd: &Odd) -> Vec<u8> {
        let payloads = [
            get("a.test"),
            get("denied.test"),
            "GET / HTTP/1.1\r\nHost: a.test\r\nUpgrade: websocket\r\n\r\n".to_owned(),
            "HTTP/1.1 101 Yes\r\n\r\n".to_owned(),
            "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n6\r\n".to_owned(),
            "x".repeat(60_000),
        ];
        let payload = payloads[odd.payload % payloads.len()].as_bytes();
        let payload = &payload[..odd.len.min(payload.len())];
        let segment = TcpRepr {
            control: odd.control,
            seq_number: TcpSeqNumber(self.next.wrapping_add(odd.sequence)),
            ack_number: odd.acknowledged.map(|odd| TcpSeqNumber(self.expected.wrapping_add(odd))),
            window_len: odd.window,
            window_scale: odd.scale,
            max_seg_size: odd.mss,
            payload,
            ..PLAIN
        };
        if odd.sequence == 0 {
            let controls = i32::from(matches!(odd.control, TcpControl::Syn | TcpControl::Fin));
            self.next = self.next.wrapping_add(payload.len() as i32 + controls);
        }
        packet(self.own, self.peer, &segment)
    }

    /// Follows a frame of the relay.
    fn follow(&mut self, frame: &[u8]) {
        let packet = Ipv4Packet::new_checked(TcpFrame::parse(frame).unwrap().packet).unwrap();
        assert!(packet.verify_checksum() && packet.total_len() <= 1500);
        let segment = TcpPacket::new_checked(packet.payload()).unwrap();
        assert!(segment.verify_checksum(&packet.src_addr().into(), &packet.dst_addr().into()));
        self.expected = (segment.seq_number() + segment.segment_len()).0;
    }
}

struct Sides {
    relays: Relays,
    guest: Side,
    far: Side,
    judged: Vec<String>,
    now: Instant,
}

impl Sides {
    fn new() -> Self {
        let (guest, far) = ends_of(V4, 4000);
        Self {
            relays: Relays::new(1500, 1500),
            guest: Side { own: guest, peer: far, next: i32::MAX - 9, expected: 0 },
            far: Side { own: far, peer: guest, next: -9, expected: 0 },
            judged: Vec::new(),
            now: Instant::now(),
        }
    }

    fn send(&mut self, odd: &Odd) {
        let (relays, now) = (&mut self.relays, self.now);
        let mut hosts = judge(&mut self.judged);
        if odd.is_of_guest {
            let packet = self.guest.packet(odd);
            let frame = frame_of(&packet, (GUEST_MAC, ROUTER_MAC), self.guest.own.0);
            relays.receive_from_guest(&frame, TcpChecksum::Verified, now, &mut hosts);
        } else {
            let packet = self.far.packet(odd);
            let frame = frame_of(&packet, (ROUTER_MAC, GUEST_MAC), self.far.own.0);
            relays.receive_from_far(&frame, TcpChecksum::Verified, now, &mut hosts);
        }
        drop(hosts);
        if odd.drains {
            self.drain();
        }
        self.now += Duration::from_millis(odd.delay);
        let soon = self.now + Duration::from_millis(1);
        if self.relays.next_work(self.now).is_some_and(|next| next <= soon) {
            self.relays.work(self.now, &mut judge(&mut self.judged));
        }
    }

    fn drain(&mut self) {
        while let Some(frame) = self.relays.next_to_guest() {
            self.guest.follow(&frame);
        }
        while let Some(frame) = self.relays.next_to_far() {
            self.far.follow(&frame);
        }
    }

    /// Connects both sides.
    fn connect(&mut self, odd: &Odd) {
        let right = Odd { sequence: 0, acknowledged: None, len: 0, delay: 0, drains: true, ..*odd };
        self.send(&Odd { is_of_guest: true, control: TcpControl::Syn, ..right });
        self.send(&Odd { is_of_guest: false, control: TcpControl::Syn, acknowledged: Some(0), ..right });
        self.drain();
        let confirmed = Odd { control: TcpControl::None, acknowledged: Some(0), ..right };
        self.send(&Odd { is_of_guest: true, ..confirmed });
    }
}

fn odd() -> impl Strategy<Value = Odd> {
    let control = prop_oneof![
        12 => Just(TcpControl::None),
        4 => Just(TcpControl::Psh),
        1 => Just(TcpControl::Syn),
        2 => Just(TcpControl::Fin),
        1 => Just(TcpControl::Rst),
    ];
    let sequence = prop_oneof![8 => Just(0), 3 => -200..200, 1 => -140_000..140_000, 1 => any::<i32>()];
    let acknowledged = prop_oneof![8 => Just(0), 3 => -200..200, 1 => -140_000..140_000, 1 => any::<i32>()];
    let window = prop_oneof![2 => Just(0xffff), 1 => Just(0), 1 => any::<u16>()];
    let bytes = (0..6_usize, prop_oneof![Just(0), 1..100_usize, Just(60_000)]);
    let options = (prop::option::of(0..20_u8), prop::option::of(prop_oneof![0..100_u16, any::<u16>()]));
    let delay = prop_oneof![4 => 0..3_u64, 1 => 0..3_000_u64, 1 => 0..100_000_u64];
    let acknowledged = prop_oneof![1 => Just(None), 9 => acknowledged.prop_map(Some)];
    let flags = (any::<bool>(), prop::bool::weighted(0.8));
    (flags, control, sequence, acknowledged, window, options, bytes, delay).prop_map(
        |((is_of_guest, drains), control, sequence, acknowledged, window, (scale, mss), bytes, delay)| {
            let (payload, len) = bytes;
            Odd {
                is_of_guest,
                control,
                sequence,
                acknowledged,
                window,
                scale,
                mss,
                payload,
                len,
                delay,
                drains,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// The relay neither panics nor keeps a connection of two sides that fall silent.
    #[test]
    fn odd_segments_end_with_their_connection(
        first in prop::option::weighted(0.8, odd()),
        segments in prop::collection::vec(odd(), 1..60),
    ) {
        let mut sides = Sides::new();
        if let Some(first) = first {
            sides.connect(&first);
        }
        for segment in &segments {
            sides.send(segment);
        }
        let end = sides.now + Duration::from_secs(2 * 3600);
        let mut turns = 0;
        sides.drain();
        while let Some(next) = sides.relays.next_work(sides.now).filter(|next| *next <= end) {
            sides.now = next;
            sides.relays.work(next, &mut judge(&mut sides.judged));
            sides.drain();
            turns += 1;
            prop_assert!(turns < 2000, "the relay is busy: {:?}", sides.relays);
        }
        prop_assert!(!sides.relays.is_known(sides.guest.own, sides.far.own));
    }
}
