//! A guest that cuts, repeats and overlaps its segments as it likes.

use proptest::prelude::*;
use smoltcp::wire::{Ipv4Packet, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber};
use volt_policy::{BodyLength, HeadStart, read_head};

use super::super::frame::{TcpFrame, frame_of};
use super::bench::{Bench, GUEST_MAC, PLAIN, ROUTER_MAC, V4, get, packet};

/// The sequence number of the guest's SYN.
const FIRST: u32 = u32::MAX - 20;

/// A guest that sends segments by hand.
struct RawGuest {
    bench: Bench,
    /// The sequence number of the relay's first byte.
    acknowledged: Option<TcpSeqNumber>,
}

impl RawGuest {
    fn connected() -> Self {
        let mut raw = Self { bench: Bench::new(V4), acknowledged: None };
        raw.send(0, TcpControl::Syn, b"");
        let frame = raw.bench.guest_wire.sent.pop().unwrap();
        let packet = Ipv4Packet::new_checked(TcpFrame::parse(&frame).unwrap().packet).unwrap();
        let segment = TcpPacket::new_checked(packet.payload()).unwrap();
        raw.acknowledged = Some(segment.seq_number() + 1);
        raw.send(1, TcpControl::None, b"");
        raw
    }

    /// Sends a segment with this offset from the SYN.
    fn send(&mut self, offset: u32, control: TcpControl, payload: &[u8]) {
        let seq_number = TcpSeqNumber(FIRST.wrapping_add(offset) as i32);
        let ack_number = self.acknowledged;
        let (guest, far) = self.bench.ends;
        let packet = packet(guest, far, &TcpRepr { control, seq_number, ack_number, payload, ..PLAIN });
        self.bench.receive_from_guest(&frame_of(&packet, (GUEST_MAC, ROUTER_MAC), guest.0));
        self.bench.settle_without_guest();
    }

    /// Sends the bytes from `at` on of a stream.
    fn send_part(&mut self, stream: &[u8], at: usize, len: usize) {
        self.send(1 + at as u32, TcpControl::None, &stream[at..stream.len().min(at + len)]);
    }

    /// The status of the relay's own answer.
    fn answer(&self) -> Option<String> {
        let payload = |frame: &Vec<u8>| {
            let packet = Ipv4Packet::new_checked(TcpFrame::parse(frame).unwrap().packet).unwrap();
            let segment = TcpPacket::new_checked(packet.payload()).unwrap();
            String::from_utf8(segment.payload().to_vec()).unwrap()
        };
        let frames = self.bench.guest_wire.sent.iter();
        frames.map(payload).find(|text| !text.is_empty()).map(|text| text[9..12].to_owned())
    }
}

/// Streams, the bytes of them that pass, and the status of the answer.
fn streams() -> Vec<(String, usize, Option<&'static str>)> {
    let (allowed, denied) = (get("a.test"), get("denied.test"));
    let post = "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\n\r\nhello";
    let chunked =
        "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    let good = [&allowed, post, chunked, &allowed].concat();
    vec![
        (good.clone(), good.len(), None),
        (good.clone() + &denied + &allowed, good.len(), None),
        (denied.clone() + &allowed, 0, Some("403")),
        (good.clone() + "CONNECT a.test:1 HTTP/1.1\r\nHost: a.test\r\n\r\n", good.len(), None),
        ("GET / HTTP/1.1\r\nHost: a.test\nHost: b.test\r\n\r\n".to_owned(), 0, Some("400")),
        (post.to_owned() + &denied, post.len(), None),
    ]
}

#[test]
fn later_content_of_the_same_numbers_never_passes() {
    let (allowed, denied) = (get("aaaaaa.test"), get("denied.test"));
    for (first, second, passes) in [(&allowed, &denied, true), (&denied, &allowed, false)] {
        let mut raw = RawGuest::connected();
        let half = allowed.len() - 4;
        raw.send_part(first.as_bytes(), 0, half);
        raw.send_part(second.as_bytes(), 0, half);
        raw.send_part(second.as_bytes(), 0, second.len());
        raw.send_part(second.as_bytes(), 0, second.len());
        let expected = if passes { allowed.as_str() } else { "" };
        assert_eq!(raw.bench.requests(), expected);
        assert_eq!(raw.answer().as_deref(), (!passes).then_some("403"));
    }
}

#[test]
fn bytes_behind_a_fin_never_pass() {
    let mut raw = RawGuest::connected();
    let request = get("a.test");
    raw.send(1, TcpControl::Fin, request.as_bytes());
    let end = 2 + request.len() as u32;
    raw.send(end, TcpControl::None, get("b.test").as_bytes());
    raw.send(end, TcpControl::Psh, get("denied.test").as_bytes());
    assert_eq!((raw.bench.requests(), raw.bench.judged.len()), (request, 1));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn every_split_gives_the_same_bytes_and_the_same_verdict(
        which in 0..6_usize,
        cuts in prop::collection::vec(0..300_usize, 0..12),
        is_reversed: bool,
    ) {
        let (stream, passed, answer) = streams().swap_remove(which);
        let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut % stream.len()).collect();
        cuts.extend([0, stream.len()]);
        cuts.sort_unstable();
        let mut raw = RawGuest::connected();
        let mut parts: Vec<_> = cuts.windows(2).map(|two| (two[0], two[1] - two[0])).collect();
        if is_reversed {
            // The relay keeps some of what comes early. The rest comes again.
            let in_order = parts.clone();
            parts.reverse();
            parts.extend(in_order);
        }
        for (at, len) in parts {
            raw.send_part(stream.as_bytes(), at, len);
        }
        prop_assert_eq!(raw.bench.requests(), &stream[..passed]);
        prop_assert_eq!(raw.answer(), answer.map(str::to_owned));
    }

    /// Each number may come with the bytes of either stream, at any time.
    #[test]
    fn far_side_gets_judged_bytes_alone(
        segments in prop::collection::vec((0..9_usize, 20..80_usize, any::<bool>()), 1..40),
    ) {
        let post = |host: &str, len: usize| {
            format!("POST / HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len}\r\n\r\n")
        };
        let one = post("a.test", 40) + &get("a.test") + &get("a.test");
        let other = post("a.test", 10) + &get("denied") + &get("b.test") + &get("a.test");
        let mut raw = RawGuest::connected();
        for (at, len, is_other) in segments {
            let stream = if is_other { &other } else { &one };
            raw.send_part(stream.as_bytes(), at * 20 % stream.len(), len);
        }
        let got = std::mem::take(&mut raw.bench.server.got);
        // The last body may not be whole.
        let padded = [&got[..], &[0; 40]].concat();
        let mut heads = 0;
        let mut rest = &padded[..];
        while rest.len() > 40 {
            let HeadStart::Whole(head, len) = read_head(rest) else { panic!("{got:?}") };
            let is_denied = |name: &volt_policy::Name| name.as_str().starts_with("denied");
            prop_assert!(!matches!(&head.host, volt_policy::Host::Name(name) if is_denied(name)));
            let BodyLength::Bytes(body) = head.body else { panic!("{got:?}") };
            rest = &rest[len + body as usize..];
            heads += 1;
        }
        prop_assert!(heads <= raw.bench.judged.len());
    }
}
