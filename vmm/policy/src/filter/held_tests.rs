//! Connections of TLS that are held until their name is known.

use std::time::Duration;

use etherparse::PacketBuilder;
use proptest::prelude::*;

use super::tests::filter;
use super::*;
use crate::client_hello::testing::{extension, message_of, records, sni};
use crate::frame::Segment;
use crate::hold::{Copied, LEAST_FIRST};

pub(super) const US: Mac = [2, 0, 0, 0, 0, 1];
const GATEWAY: Mac = [2, 0, 0, 0, 0, 2];
const OWN: [u8; 4] = [10, 118, 111, 15];
const FAR: [u8; 4] = [192, 0, 2, 1];
/// Numbers of the first byte of each side.
pub(super) const START: u32 = u32::MAX - 700;
pub(super) const SERVER: u32 = 9000;
pub(super) const ONLY: &str = r#"{"default":"deny","allow":["*.example.org:443"]}"#;
const HIDDEN: &str = r#"{"default":"deny","allow":["*.example.org:443"],"ech":"refuse"}"#;
pub(super) const RETRY: &[u8] =
    b"\x16\x03\x03\x00\x58\x02\x00\x00\x54\x03\x03\xcf\x21\xad\x74\xe5\x9a\x61\x11\xbe\x1d\x8c\
\x02\x1e\x65\xb8\x91\xc2\xa2\x11\x16\x7a\xbb\x8c\x5e\x07\x9e\x09\xe2\xc8\xa8\x33\x9c and the rest";
const HELLO: &[u8] = b"\x16\x03\x03\x00\x7a\x02\x00\x00\x76\x03\x03 a random number of 32 bytes and the rest";
const CHANGE_CIPHER: &[u8] = &[20, 3, 3, 0, 1, 1];

/// A connection of the guest through a filter.
pub(super) struct Wire {
    pub(super) filter: Filter,
    pub(super) now: Instant,
    /// Payloads that reached the far side, with the numbers of their first bytes.
    pub(super) far: Vec<(u32, Vec<u8>)>,
    /// Bytes that the far side has acknowledged. It ignores them when they come again.
    acknowledged: usize,
    resets_to_far: Vec<u32>,
    resets_to_guest: usize,
    /// Numbers up to which the device acknowledged.
    pub(super) acknowledges: Vec<u32>,
    pub(super) causes: Vec<String>,
}

pub(super) fn hello(name: &str) -> Vec<u8> {
    records(&message_of(&[extension(51, &[0; 700]), sni(name)]), 1 << 14)
}

pub(super) fn frame(
    is_guest: bool,
    sequence: u32,
    acknowledged: u32,
    flags: &str,
    payload: &[u8],
) -> Vec<u8> {
    let (macs, ips, ports) = match is_guest {
        true => ([US, GATEWAY], [OWN, FAR], [4000, 443]),
        false => ([GATEWAY, US], [FAR, OWN], [443, 4000]),
    };
    let ip = PacketBuilder::ethernet2(macs[0], macs[1]).ipv4(ips[0], ips[1], 64);
    let mut step = ip.tcp(ports[0], ports[1], sequence, 1000);
    for flag in flags.chars() {
        step = match flag {
            'S' => step.syn(),
            'A' => step.ack(acknowledged),
            'F' => step.fin(),
            'R' => step.rst(),
            'P' => step.psh(),
            'U' => step.urg(1),
            _ => panic!("{flag}"),
        };
    }
    let mut bytes = Vec::new();
    step.write(&mut bytes, payload).unwrap();
    bytes
}

pub(super) fn parsed(bytes: &[u8]) -> (Packet, Segment) {
    let frame = Frame::parse(bytes, bytes.len()).unwrap();
    let Content::Packet(packet) = frame.content else { panic!("{frame:?}") };
    (packet, *segment(&packet).unwrap())
}

impl Wire {
    /// A connection that is open, to a pinned address.
    pub(super) fn open(policy: &str) -> Self {
        let mut filter = filter(policy);
        let now = Instant::now();
        let name = Name::parse("a.example.org").unwrap();
        filter.pin(&name, &[(IpAddr::from(FAR), 60)], now);
        let mut wire = Self {
            filter,
            now,
            far: Vec::new(),
            acknowledged: 0,
            resets_to_far: Vec::new(),
            resets_to_guest: 0,
            acknowledges: Vec::new(),
            causes: Vec::new(),
        };
        wire.guest(START.wrapping_sub(1), "S", b"");
        assert_eq!(wire.server(SERVER - 1, START, "SA", b""), Outcome::Pass);
        wire.guest(START, "A", b"");
        assert_eq!((wire.far.len(), wire.causes.len()), (0, 0));
        wire
    }

    /// Sends a segment of the guest.
    pub(super) fn guest(&mut self, sequence: u32, flags: &str, payload: &[u8]) {
        self.guest_frame(&frame(true, sequence, SERVER, flags, payload));
    }

    pub(super) fn guest_frame(&mut self, bytes: &[u8]) {
        let head = &bytes[..bytes.len().min(crate::frame::HEAD)];
        match self.filter.outgoing(head, bytes.len(), Offload::default(), self.now) {
            Outcome::Pass => self.arrives(bytes),
            Outcome::Stop(cause, answer) => {
                self.causes.push(cause.to_string());
                self.resets_to_guest += usize::from(answer.is_some());
            }
            Outcome::Take(Taken::Hello) => {
                let copied = Copied { header: [0; 12], frame: bytes.into() };
                let held = self.filter.hold(&copied, Offload::default(), self.now);
                held.to_far.iter().for_each(|copied| self.arrives(&copied.frame));
                held.to_guest.iter().for_each(|bytes| self.answers(bytes));
                self.causes.extend(held.cause.map(|cause| cause.to_string()));
            }
            other => panic!("{other:?}"),
        }
    }

    /// Notes an answer of the device.
    fn answers(&mut self, bytes: &[u8]) {
        let (packet, segment) = parsed(bytes);
        if segment.flags.rst {
            self.resets_to_guest += 1;
            return;
        }
        // As the far side would send it, with the largest window.
        let expected = frame(false, SERVER, segment.acknowledged, "A", b"");
        let window = packet.transport_at + 14;
        let sum = packet.transport_at + 16;
        assert_eq!((&bytes[..window], &bytes[window..sum]), (&expected[..window], &[0xff; 2][..]));
        assert!(packet.has_right_checksum(bytes));
        self.acknowledges.push(segment.acknowledged);
    }

    fn arrives(&mut self, bytes: &[u8]) {
        let (packet, segment) = parsed(bytes);
        if segment.flags.rst {
            self.resets_to_far.push(segment.sequence);
        } else if packet.payload.0 < packet.payload.1 {
            let known =
                START.wrapping_add(self.acknowledged as u32).wrapping_sub(segment.sequence).cast_signed();
            let fresh = packet.payload.0 + usize::try_from(known).unwrap_or(0);
            if fresh < packet.payload.1 {
                let sequence = segment.sequence.wrapping_add((fresh - packet.payload.0) as u32);
                self.far.push((sequence, bytes[fresh..packet.payload.1].to_vec()));
            }
        }
    }

    /// Sends a segment of the far side.
    pub(super) fn server(
        &mut self,
        sequence: u32,
        acknowledged: u32,
        flags: &str,
        payload: &[u8],
    ) -> Outcome {
        let bytes = frame(false, sequence, acknowledged, flags, payload);
        self.filter.incoming(&bytes, bytes.len(), self.now)
    }

    /// The stream that the far side has, up to the first hole.
    pub(super) fn stream(&self) -> Vec<u8> {
        let mut stream = Vec::new();
        loop {
            let next = START.wrapping_add(stream.len() as u32);
            let Some((_, payload)) = self.far.iter().find(|(from, _)| *from == next) else { return stream };
            stream.extend_from_slice(payload);
        }
    }

    fn is_ended(&self, words: &str) {
        assert!(self.far.is_empty(), "{:?}", self.far);
        assert!(self.causes.last().unwrap().contains(words), "{words}: {:?}", self.causes);
        assert_eq!((&self.resets_to_far[..], self.resets_to_guest), (&[START][..], 1));
        assert_eq!((self.filter.connections(), self.filter.held()), (0, 0));
    }
}

pub(super) fn at(offset: usize) -> u32 {
    START.wrapping_add(offset as u32)
}

#[test]
fn allowed_name_passes_and_then_all_that_follows() {
    for size in [1500, 400, 120] {
        let mut wire = Wire::open(ONLY);
        let hello = hello("www.example.org");
        for (number, part) in hello.chunks(size).enumerate() {
            assert!(wire.far.is_empty(), "nothing leaves before the name is known");
            wire.guest(at(number * size), "A", part);
        }
        assert_eq!(wire.stream(), hello);
        assert_eq!(wire.server(SERVER, at(hello.len()), "A", HELLO), Outcome::Pass);
        assert_eq!(wire.filter.held(), 0);
        wire.guest(at(hello.len()), "A", b"anything");
        assert_eq!(wire.stream(), [&hello[..], b"anything"].concat());
        // A policy that denies the name ends the connection.
        let policy = serde_json::from_str(r#"{"default":"deny","allow":["a.example.org"]}"#).unwrap();
        wire.filter.change(Arc::new(Judge::new(&policy, []).unwrap()), wire.now);
        assert_eq!(wire.filter.connections(), 0);
    }
}

#[test]
fn denied_names_and_other_protocols_end_at_both_sides() {
    let encrypted = records(&message_of(&[sni("a.example.org"), extension(0xfe0d, &[0; 90])]), 1 << 14);
    for (policy, bytes, words) in [
        (ONLY, hello("attacker.test"), "no rule"),
        (ONLY, hello("example.org"), "no rule"),
        (ONLY, records(&message_of(&[extension(43, &[2, 3, 4])]), 1 << 14), "no rule"),
        (ONLY, b"SSH-2.0-OpenSSH_9.2\r\n".to_vec(), "does not begin with a TLS handshake"),
        (HIDDEN, encrypted.clone(), "encrypts its name"),
    ] {
        let mut wire = Wire::open(policy);
        wire.guest(START, "A", &bytes);
        wire.is_ended(words);
        wire.guest(START, "A", &hello("www.example.org"));
        assert!(wire.far.is_empty(), "what follows belongs to no connection");
        assert_eq!(wire.resets_to_guest, 2);
    }
    let mut wire = Wire::open(ONLY);
    wire.guest(START, "A", &encrypted);
    assert_eq!(wire.stream(), encrypted, "judged by the name outside");
}

#[test]
fn data_that_a_server_could_read_otherwise_is_refused() {
    let hello = hello("www.example.org");
    let mut wire = Wire::open(ONLY);
    wire.guest(START, "AU", &hello);
    wire.is_ended("urgent");
    let mut wire = Wire::open(ONLY);
    wire.guest(START, "A", &hello[..100]);
    wire.guest(at(100), "AF", b"");
    wire.is_ended("ends before");
    let mut wire = Wire::open(ONLY);
    wire.guest(START, "A", &hello[..100]);
    wire.now += Duration::from_secs(5);
    wire.guest(at(100), "A", &hello[100..]);
    wire.is_ended("takes too long");
    let mut wire = Wire::open(ONLY);
    (0..65).for_each(|number| wire.guest(at(number), "A", &hello[number..=number]));
    wire.is_ended("too many pieces");
    // A wrong checksum.
    let mut wire = Wire::open(ONLY);
    let mut bytes = frame(true, START, SERVER, "A", &hello);
    *bytes.last_mut().unwrap() ^= 1;
    wire.guest_frame(&bytes);
    assert_eq!((wire.far.len(), &wire.causes[..]), (0, &["wrong checksum".to_owned()][..]));
    // Data in the first segment.
    let mut filter = filter(ONLY);
    let name = Name::parse("a.example.org").unwrap();
    filter.pin(&name, &[(IpAddr::from(FAR), 60)], Instant::now());
    let early = frame(true, START, 0, "S", b"data");
    let outcome = filter.outgoing(&early, early.len(), Offload::default(), Instant::now());
    assert_eq!(outcome, Outcome::Stop(Cause::Malformed(Malformed::Early), None));
}

#[test]
fn message_after_a_retry_has_the_same_name() {
    for (second, words) in [
        (hello("www.example.org"), None),
        (hello("b.example.org"), Some("another name")),
        (hello("attacker.test"), Some("another name")),
    ] {
        let mut wire = Wire::open(ONLY);
        let first = hello("www.example.org");
        wire.guest(START, "A", &first);
        // The retry comes in pieces, and out of order.
        assert_eq!(wire.server(SERVER, at(first.len()), "A", &RETRY[..20]), Outcome::Pass);
        assert!(matches!(wire.server(SERVER + 30, at(first.len()), "A", &RETRY[30..]), Outcome::Stop(..)));
        assert_eq!(wire.server(SERVER + 20, at(first.len()), "A", &RETRY[20..]), Outcome::Pass);
        let end = SERVER + RETRY.len() as u32;
        assert_eq!(wire.server(end, at(first.len()), "A", CHANGE_CIPHER), Outcome::Pass);
        let second = [CHANGE_CIPHER, &second].concat();
        wire.guest(at(first.len()), "A", &second[..6]);
        wire.guest(at(first.len() + 6), "A", &second[6..]);
        match words {
            None => {
                let all = [&first[..], &second].concat();
                assert_eq!(wire.stream(), all);
                assert_eq!(wire.server(end + 6, at(all.len()), "A", b""), Outcome::Pass);
                wire.guest(at(all.len()), "A", b"more");
                assert_eq!(wire.stream(), [&all[..], b"more"].concat());
            }
            Some(words) => {
                assert!(wire.causes.last().unwrap().contains(words), "{:?}", wire.causes);
                assert_eq!((wire.stream(), &wire.resets_to_far[..]), (first.clone(), &[at(first.len())][..]));
            }
        }
        assert_eq!(wire.filter.held(), 0);
    }
}

#[test]
fn nothing_follows_the_message_before_the_far_side_has_begun_to_answer() {
    let mut wire = Wire::open(ONLY);
    let first = hello("www.example.org");
    wire.guest(START, "A", &first);
    wire.guest(at(first.len()), "A", b"early data");
    assert_eq!(wire.server(SERVER, at(first.len()), "A", b""), Outcome::Pass);
    wire.guest(at(first.len()), "A", b"early data");
    assert_eq!(wire.stream(), first);
    assert_eq!(wire.server(SERVER, at(first.len()), "A", &[21, 3, 3, 0, 2, 2, 40]), Outcome::Pass);
    wire.guest(at(first.len()), "A", b"early data");
    assert_eq!(wire.stream(), [&first[..], b"early data"].concat());
    // Early data in the segment of the message: a retry would hide what follows.
    let mut wire = Wire::open(ONLY);
    wire.guest(START, "A", &[&first[..], &[23, 3, 3, 0, 1, 0]].concat());
    assert_eq!(wire.stream().len(), first.len() + 6);
    let Outcome::Stop(cause, _) = wire.server(SERVER, at(first.len() + 6), "A", RETRY) else { panic!() };
    assert!(cause.to_string().contains("too early"), "{cause}");
    assert_eq!(wire.filter.connections(), 0);
}

#[test]
fn far_side_that_speaks_first_is_no_tls() {
    let mut wire = Wire::open(ONLY);
    let Outcome::Stop(cause, _) = wire.server(SERVER, START, "A", b"SSH-2.0") else { panic!() };
    assert!(cause.to_string().contains("speaks first"), "{cause}");
    wire.guest(START, "A", &hello("www.example.org"));
    assert_eq!((wire.far.len(), wire.resets_to_guest), (0, 1));
}

#[test]
fn what_is_held_is_bounded_and_given_up_after_its_time() {
    [1, 2].into_iter().for_each(bounded_with_so_many_interfaces);
}

fn bounded_with_so_many_interfaces(count: usize) {
    let mut filter = filter(ONLY);
    let mut now = Instant::now();
    filter.change(Arc::new(Judge::clone(filter.judge()).for_interfaces(count)), now);
    let name = Name::parse("a.example.org").unwrap();
    filter.pin(&name, &[(IpAddr::from(FAR), 60)], now);
    let part = hello("www.example.org")[..700].to_vec();
    let mut send = |port: u16, now: Instant| {
        let ip = || PacketBuilder::ethernet2(US, GATEWAY).ipv4(OWN, FAR, 64);
        let mut syn = Vec::new();
        ip().tcp(port, 443, 99, 1000).syn().write(&mut syn, &[]).unwrap();
        assert_eq!(filter.outgoing(&syn, syn.len(), Offload::default(), now), Outcome::Pass);
        let mut answer = Vec::new();
        let back = PacketBuilder::ethernet2(GATEWAY, US).ipv4(FAR, OWN, 64);
        back.tcp(443, port, 0, 1000).syn().ack(100).write(&mut answer, &[]).unwrap();
        assert_eq!(filter.incoming(&answer, answer.len(), now), Outcome::Pass);
        let mut data = Vec::new();
        ip().tcp(port, 443, 100, 1000).ack(1).write(&mut data, &part).unwrap();
        let copied = Copied { header: [0; 12], frame: data.into() };
        let held = filter.hold(&copied, Offload::default(), now);
        (held.cause, filter.held())
    };
    let fitting = crate::hold::MOST_HELD / count / (700 + 54 + 700);
    for port in 0..fitting as u16 {
        assert_eq!(send(1000 + port, now).0, None);
    }
    let (cause, held) = send(9000, now);
    assert_eq!((cause, held), (Some(Cause::Full), fitting * 1454));
    now += Duration::from_secs(5);
    assert_eq!(send(9001, now), (None, 1454));
}

/// A message whose padding has another message in it, from this offset on.
fn nested(outer: &str, inner: &str) -> (Vec<u8>, usize) {
    let inner = hello(inner);
    let message = message_of(&[sni(outer), extension(21, &inner)]);
    let bytes = records(&message, 1 << 14);
    let at = bytes.windows(inner.len()).position(|window| window == inner).unwrap();
    (bytes, at)
}

#[test]
fn guest_does_not_choose_where_the_far_side_s_stream_begins() {
    let (message, inside) = nested("www.example.org", "www.attacker.ts");
    let back = START.wrapping_sub(inside as u32);
    // A SYN with another number, in the forms that a far side answers without taking it.
    for flags in ["S", "SA", "SF", "SR"] {
        let mut wire = Wire::open(ONLY);
        wire.guest(back.wrapping_sub(1), flags, b"");
        wire.guest(back, "A", &message);
        wire.guest(START, "A", &message[inside..]);
        assert!(wire.far.is_empty(), "{flags}: {:?}", wire.far);
    }
    // Before the far side has answered the first SYN.
    let mut wire = Wire::open(ONLY);
    wire.filter.begin_anew(US);
    wire.guest(START.wrapping_sub(1), "S", b"");
    wire.guest(back.wrapping_sub(1), "S", b"");
    assert!(matches!(wire.server(SERVER - 1, START, "SA", b""), Outcome::Stop(..)), "of the first SYN");
    wire.guest(back, "A", &message);
    assert!(wire.far.is_empty());
    // Nothing leaves before the far side has answered.
    let mut wire = Wire::open(ONLY);
    wire.filter.begin_anew(US);
    wire.guest(START.wrapping_sub(1), "S", b"");
    wire.guest(START, "A", &message);
    assert!(wire.far.is_empty());
}

#[test]
fn far_side_acknowledges_only_what_was_sent() {
    for acknowledged in [at(5000), START.wrapping_sub(100)] {
        let mut wire = Wire::open(ONLY);
        let first = hello("www.example.org");
        wire.guest(START, "A", &first);
        assert!(matches!(wire.server(SERVER, acknowledged, "A", b""), Outcome::Stop(..)));
        assert_eq!(wire.filter.connections(), 0);
    }
}

#[test]
fn sent_messages_and_dead_connections_keep_no_room_for_long() {
    let message = hello("www.example.org");
    // More than the message comes with it, and the far side never speaks.
    let mut wire = Wire::open(r#"{"deny":["*.ads.test"]}"#);
    wire.guest(START, "A", &[&message[..], &[7; 50_000]].concat());
    assert_eq!(wire.stream().len(), message.len() + 50_000);
    let ends = Ends { protocol: Protocol::Tcp, guest: (OWN.into(), 4000), far: (FAR.into(), 443) };
    let kept = |wire: &mut Wire| match wire.filter.connections.route(&ends) {
        Some(Route::Held(hold)) => hold.kept_bytes(),
        other => panic!("{other:?}"),
    };
    assert_eq!(kept(&mut wire), 0, "the copies alone are kept");
    let held_after = |wire: &mut Wire, wait: Duration| {
        wire.filter.connections.end_late_holds(wire.now + wait);
        wire.filter.held()
    };
    let mut wire = Wire::open(ONLY);
    wire.guest(START, "A", &message);
    assert!(held_after(&mut wire, Duration::from_secs(28)) > 0);
    assert_eq!(held_after(&mut wire, Duration::from_secs(30)), 0, "the far side never acknowledges");
    let mut wire = Wire::open(ONLY);
    wire.guest(START, "A", &message);
    wire.guest(at(message.len()), "R", b"");
    assert_eq!(held_after(&mut wire, Duration::ZERO), 0, "the guest gives up");
}

#[test]
fn connection_that_encrypts_its_name_ends_with_a_policy_that_refuses_that() {
    let encrypted = records(&message_of(&[sni("a.example.org"), extension(0xfe0d, &[0; 90])]), 1 << 14);
    for is_acknowledged in [false, true] {
        let mut wire = Wire::open(ONLY);
        wire.guest(START, "A", &encrypted);
        if is_acknowledged {
            assert_eq!(wire.server(SERVER, at(encrypted.len()), "A", HELLO), Outcome::Pass);
        }
        let change = |wire: &mut Wire, policy: &str| {
            let judge = Judge::new(&serde_json::from_str(policy).unwrap(), []).unwrap();
            wire.filter.change(Arc::new(judge), wire.now);
            wire.filter.connections()
        };
        assert_eq!(change(&mut wire, ONLY), 1);
        assert_eq!(change(&mut wire, HIDDEN), 0);
    }
}

#[test]
fn connection_that_asks_for_nothing_ends_in_peace() {
    let mut wire = Wire::open(ONLY);
    wire.guest(START, "AF", b"");
    assert_eq!(wire.server(SERVER, at(1), "AF", b""), Outcome::Pass);
    let last = frame(true, at(1), SERVER + 1, "A", b"");
    wire.guest_frame(&last);
    assert_eq!((wire.causes.len(), wire.resets_to_guest), (0, 0));
    // The far side ends it first: a server closes a connection that is idle.
    let mut wire = Wire::open(ONLY);
    assert_eq!(wire.server(SERVER, START, "AF", b""), Outcome::Pass);
    assert_eq!(wire.server(SERVER, START, "AF", b""), Outcome::Pass, "again");
    wire.guest_frame(&frame(true, START, SERVER + 1, "A", b""));
    wire.guest_frame(&frame(true, START, SERVER + 1, "AF", b""));
    assert_eq!(wire.server(SERVER + 1, at(1), "A", b""), Outcome::Pass);
    assert_eq!((&wire.causes[..], wire.resets_to_guest), (&[][..], 0));
    // A guest acknowledges no more.
    wire.guest_frame(&frame(true, at(1), SERVER + 2, "A", b""));
    assert_eq!(wire.causes, ["of no connection"]);
}

#[test]
fn connection_of_several_paths_begins_without_them() {
    for (options, is_dropped) in [
        (&[2, 4, 5, 0xb4, 30, 4, 0, 1][..], true),
        (&[1, 1, 34, 2, 30, 4, 0, 1], true),
        (&[34, 2, 2, 4, 5, 0xb4, 0, 30], false),
        (&[2, 4, 5, 0xb4, 1, 3, 3, 7], false),
        (&[2, 4, 5, 0xb4, 8, 0, 0, 0], true),
        (&[2, 4, 5, 0xb4, 8, 9, 0, 0], true),
    ] {
        let mut filter = filter(ONLY);
        let name = Name::parse("a.example.org").unwrap();
        filter.pin(&name, &[(IpAddr::from(FAR), 60)], Instant::now());
        let ip = PacketBuilder::ethernet2(US, GATEWAY).ipv4(OWN, FAR, 64);
        let step = ip.tcp(4000, 443, 1, 1000).syn().options_raw(options).unwrap();
        let mut syn = Vec::new();
        step.write(&mut syn, &[]).unwrap();
        let outcome = filter.outgoing(&syn, syn.len(), Offload::default(), Instant::now());
        let dropped = Outcome::Stop(Cause::Malformed(Malformed::Multipath), None);
        assert_eq!(outcome == dropped, is_dropped, "{options:?} {outcome:?}");
    }
}

#[test]
fn policy_that_changes_keeps_judged_connections_without_a_name() {
    let policy = r#"{"deny":["*.ads.test"]}"#;
    let mut wire = Wire::open(policy);
    let hello = records(&message_of(&[extension(43, &[2, 3, 4])]), 1 << 14);
    wire.guest(START, "A", &hello);
    assert_eq!(wire.server(SERVER, at(hello.len()), "A", HELLO), Outcome::Pass);
    let change = |wire: &mut Wire, policy: &str| {
        let judge = Judge::new(&serde_json::from_str(policy).unwrap(), []).unwrap();
        wire.filter.change(Arc::new(judge), wire.now);
        wire.filter.connections()
    };
    assert_eq!(change(&mut wire, policy), 1);
    assert_eq!(change(&mut wire, r#"{"default":"deny","allow":["*.example.org"]}"#), 0);
}

proptest! {
    /// Whatever the guest repeats, overlaps and changes: the far side gets no byte of a message that differs
    /// from the judged one, and nothing of a denied one.
    #[test]
    fn far_side_sees_the_judged_bytes_alone(
        sizes in prop::collection::vec(60_usize..900, 1..16),
        noise in prop::collection::vec((0_usize..16, 0_usize..900, 1_usize..900, any::<u8>()), 0..24),
        is_allowed: bool,
        acknowledged in prop::collection::vec(0_usize..16, 0..4),
    ) {
        let name = if is_allowed { "www.example.org" } else { "www.attacker.ts" };
        let message = hello(name);
        let other = hello("www.evil.example");
        let mut wire = Wire::open(ONLY);
        let mut from = 0;
        let mut first: Vec<Option<u8>> = vec![None; message.len()];
        for round in 0..16 {
            for (_, from, len, xor) in noise.iter().filter(|(at, ..)| *at == round) {
                let from = (*from).min(other.len() - 1);
                let mut part = other[from..other.len().min(from + len)].to_vec();
                part[0] ^= xor;
                match xor % 8 {
                    0 => wire.guest(at(from), "S", b""),
                    1 => wire.guest(at(from).wrapping_sub(part.len() as u32), "SA", b""),
                    2 => wire.guest(at(from), "AF", b""),
                    3 => wire.guest(at(from), "AP", &part),
                    _ => wire.guest(at(from), "A", &part),
                }
            }
            if from < message.len() {
                let to = message.len().min(from + sizes.get(round).copied().unwrap_or(900));
                wire.guest(at(from), "A", &message[from..to]);
                from = to;
            }
            if acknowledged.contains(&round) {
                let stream = wire.stream();
                wire.acknowledged = stream.len();
                wire.server(SERVER, at(wire.acknowledged), "A", b"");
            }
        }
        // Each byte that left has one value, ever.
        for (from, payload) in &wire.far {
            let from = from.wrapping_sub(START) as usize;
            for (offset, byte) in payload.iter().enumerate() {
                if let Some(place) = first.get_mut(from + offset) {
                    prop_assert_eq!(*place.get_or_insert(*byte), *byte);
                }
            }
        }
        // The stream is a message with an allowed name, from its first byte on, or nothing. A short first
        // piece waits for the far side, and the guest may have begun anew meanwhile.
        let stream = wire.stream();
        if is_allowed && (1..LEAST_FIRST).contains(&stream.len()) {
            prop_assert!(matches!(crate::read_hello(&stream), crate::HelloStart::Partial));
        } else if !wire.far.is_empty() {
            let crate::HelloStart::Whole(hello, _) = crate::read_hello(&stream) else {
                return Err(TestCaseError::fail("a part left"));
            };
            prop_assert!(hello.name.unwrap().as_str().ends_with(".example.org"));
        } else if is_allowed && noise.is_empty() {
            prop_assert!(false, "an undisturbed message passes");
        }
    }
}
