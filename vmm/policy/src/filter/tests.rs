//! The filter, on frames of both directions.

use etherparse::{
    ArpHardwareId, ArpOperation, ArpPacket, Ethernet2Header, Icmpv4Type, Icmpv6Type, PacketBuilder,
    PacketBuilderStep, ether_type,
};

use super::link::{DHCP, DHCP6, MOST_NEIGHBOURS};
use super::*;
use crate::frame::HEAD;
use crate::offload::Version;
use crate::policy::Policy;

pub(super) const US: Mac = [2, 0, 0, 0, 0, 1];
pub(super) const GATEWAY: Mac = [2, 0, 0, 0, 0, 2];
pub(super) const OWN: &str = "10.118.111.15";
pub(super) const OWN6: &str = "fd76:6f6c:7400::15";
pub(super) const FAR: &str = "192.0.2.1";
pub(super) const FAR6: &str = "2001:db8::1";
pub(super) const RESOLVER: &str = "10.118.111.3";

pub(super) fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(super) fn filter(policy: &str) -> Filter {
    let policy: Policy = serde_json::from_str(policy).unwrap();
    let judge = Judge::new(&policy, [address("198.51.100.7").into()]).unwrap();
    let v6 = "fd76:6f6c:7400::/64".parse().unwrap();
    let interface =
        Interface { mac: US, addresses: vec![address(OWN).into(), v6], is_routed: true, forwarded: vec![80] };
    Filter::new(Arc::new(judge), interface)
}

/// Both directions of an exchange.
#[derive(Clone, Copy)]
pub(super) struct Path {
    pub(super) macs: [Mac; 2],
    pub(super) addresses: [IpAddr; 2],
    pub(super) hops: u8,
}

impl Path {
    pub(super) fn between(from: &str, to: &str) -> Self {
        let addresses = [address(from), address(to)];
        let target = match addresses[1] {
            IpAddr::V4(v4) if v4.is_broadcast() => [0xff; 6],
            IpAddr::V6(v6) if v6.is_multicast() => {
                let [.., a, b, c, d] = v6.octets();
                [0x33, 0x33, a, b, c, d]
            }
            _ => GATEWAY,
        };
        Self { macs: [US, target], addresses, hops: 64 }
    }

    pub(super) fn to(target: &str) -> Self {
        Self::between(if target.contains(':') { OWN6 } else { OWN }, target)
    }

    pub(super) fn back(self) -> Self {
        let ([a, b], [c, d]) = (self.macs, self.addresses);
        Self { macs: [b, a], addresses: [d, c], hops: self.hops }
    }

    pub(super) fn packet(self) -> PacketBuilderStep<etherparse::IpHeaders> {
        let ethernet = PacketBuilder::ethernet2(self.macs[0], self.macs[1]);
        match self.addresses {
            [IpAddr::V4(from), IpAddr::V4(to)] => ethernet.ipv4(from.octets(), to.octets(), self.hops),
            [IpAddr::V6(from), IpAddr::V6(to)] => ethernet.ipv6(from.octets(), to.octets(), self.hops),
            addresses => panic!("{addresses:?}"),
        }
    }

    pub(super) fn tcp(self, ports: [u16; 2], flags: &str) -> Vec<u8> {
        let mut step = self.packet().tcp(ports[0], ports[1], 1000, 500);
        for flag in flags.chars() {
            step = match flag {
                'S' => step.syn(),
                'A' => step.ack(77),
                'F' => step.fin(),
                'R' => step.rst(),
                _ => panic!("{flag}"),
            };
        }
        let mut bytes = Vec::new();
        step.write(&mut bytes, &[]).unwrap();
        bytes
    }

    pub(super) fn udp(self, ports: [u16; 2]) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.packet().udp(ports[0], ports[1]).write(&mut bytes, b"data").unwrap();
        bytes
    }

    /// A message of ICMP or ICMPv6 with a type, and a body behind its header.
    pub(super) fn icmp(self, kind: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let bytes5to8 = [0, 9, 0, 1];
        let (type_u8, code_u8) = (kind, 0);
        match self.addresses[0] {
            IpAddr::V4(_) => {
                let message = Icmpv4Type::Unknown { type_u8, code_u8, bytes5to8 };
                self.packet().icmpv4(message).write(&mut bytes, body).unwrap();
            }
            IpAddr::V6(_) => {
                let message = Icmpv6Type::Unknown { type_u8, code_u8, bytes5to8 };
                self.packet().icmpv6(message).write(&mut bytes, body).unwrap();
            }
        }
        bytes
    }

    /// As a packet of the link.
    pub(super) fn near(self) -> Self {
        Self { hops: 255, ..self }
    }
}

pub(super) fn arp(sender_mac: Mac, sender: &str) -> Vec<u8> {
    let IpAddr::V4(sender) = address(sender) else { panic!("{sender}") };
    let message = ArpPacket::new(
        ArpHardwareId::ETHERNET,
        ether_type::IPV4,
        ArpOperation::REQUEST,
        &sender_mac,
        &sender.octets(),
        &[0; 6],
        &[10, 118, 111, 2],
    );
    let ethernet = Ethernet2Header { source: US, destination: [0xff; 6], ether_type: ether_type::ARP };
    [&ethernet.to_bytes()[..], &message.unwrap().to_bytes()].concat()
}

pub(super) fn out(filter: &mut Filter, frame: &[u8]) -> Outcome {
    filter.outgoing(&frame[..frame.len().min(HEAD)], frame.len(), Offload::default(), Instant::now())
}

pub(super) fn into(filter: &mut Filter, frame: &[u8]) -> Outcome {
    filter.incoming(&frame[..frame.len().min(HEAD)], frame.len(), Instant::now())
}

/// The cause in a word, and whether there is an answer.
pub(super) fn stopped(outcome: &Outcome) -> (String, bool) {
    match outcome {
        Outcome::Pass | Outcome::Take(_) | Outcome::Answer(_) => (format!("{outcome:?}"), false),
        Outcome::Stop(cause, answer) => {
            let cause = match cause {
                Cause::Denied { reason, .. } => reason.to_string(),
                cause => cause.to_string(),
            };
            (cause, answer.is_some())
        }
    }
}

#[test]
fn connection_that_is_allowed_passes_both_ways_until_its_end() {
    for target in [FAR, FAR6] {
        let mut filter = filter("{}");
        let (there, ports) = (Path::to(target), [4000, 443]);
        let back = there.back();
        assert_eq!(stopped(&into(&mut filter, &back.tcp([443, 4000], "SA"))).0, "of no connection");
        assert_eq!(out(&mut filter, &there.tcp(ports, "S")), Outcome::Pass);
        assert_eq!(into(&mut filter, &back.tcp([443, 4000], "SA")), Outcome::Pass);
        assert_eq!(out(&mut filter, &there.tcp(ports, "A")), Outcome::Pass);
        // Another port or another machine is no part of it.
        assert_eq!(stopped(&into(&mut filter, &back.tcp([444, 4000], "A"))).0, "of no connection");
        assert_eq!(stopped(&into(&mut filter, &back.tcp([443, 4001], "A"))).0, "of no connection");
        assert_eq!(into(&mut filter, &back.tcp([443, 4000], "R")), Outcome::Pass);
        assert_eq!(filter.connections(), 1);
    }
}

#[test]
fn datagrams_and_echoes_get_their_answers() {
    let mut filter = filter("{}");
    let there = Path::to(FAR);
    assert_eq!(out(&mut filter, &there.udp([5000, 123])), Outcome::Pass);
    assert_eq!(into(&mut filter, &there.back().udp([123, 5000])), Outcome::Pass);
    assert_eq!(stopped(&into(&mut filter, &there.back().udp([124, 5000]))).0, "of no connection");
    assert_eq!(out(&mut filter, &there.icmp(8, b"ping")), Outcome::Pass);
    assert_eq!(into(&mut filter, &there.back().icmp(0, b"ping")), Outcome::Pass);
    assert_eq!(stopped(&into(&mut filter, &there.back().icmp(8, b"ping"))).0, "of no connection");
    let there = Path::to(FAR6);
    assert_eq!(out(&mut filter, &there.icmp(128, b"ping")), Outcome::Pass);
    assert_eq!(into(&mut filter, &there.back().icmp(129, b"ping")), Outcome::Pass);
}

#[test]
fn denied_packets_are_answered_unless_the_policy_drops_them() {
    let rejects = r#"{"default":"deny"}"#;
    let drops = r#"{"default":"deny","denial":"drop"}"#;
    for (policy, answers) in [(rejects, true), (drops, false)] {
        let mut filter = filter(policy);
        for target in [FAR, FAR6] {
            let there = Path::to(target);
            let ping = if target == FAR { 8 } else { 128 };
            for frame in [there.tcp([4000, 443], "S"), there.udp([1, 2]), there.icmp(ping, b"x")] {
                assert_eq!(stopped(&out(&mut filter, &frame)), ("no rule".to_owned(), answers));
            }
            // A connection from before a restore ends in any case.
            let late = there.tcp([4000, 443], "A");
            assert_eq!(stopped(&out(&mut filter, &late)), ("no rule".to_owned(), true));
        }
        assert_eq!(filter.connections(), 0);
    }
}

#[test]
fn cause_of_a_denial_names_the_far_side_and_the_rule() {
    let mut filter = filter(r#"{"deny":["192.0.2.0/24"]}"#);
    let mut other = Path::to(FAR).udp([1, 2]);
    // SCTP, with the checksum of its header.
    (other[23], other[24], other[25]) = (132, 0, 0);
    let header = etherparse::Ipv4HeaderSlice::from_slice(&other[14..]).unwrap().to_header();
    other[24..26].copy_from_slice(&header.calc_header_checksum().to_be_bytes());
    for (frame, text) in [
        (Path::to(FAR).udp([5000, 9]), "udp to 192.0.2.1 port 9: rule 192.0.2.0/24"),
        (Path::to("10.0.0.1").tcp([5000, 9], "S"), "tcp to 10.0.0.1 port 9: private address"),
        (Path::to(FAR).icmp(8, b""), "icmp to 192.0.2.1: rule 192.0.2.0/24"),
        (other, "a protocol without rules to 192.0.2.1: no rule"),
    ] {
        let Outcome::Stop(cause, _) = out(&mut filter, &frame) else { panic!("{text}") };
        assert_eq!(cause.to_string(), text);
    }
}

#[test]
fn answer_to_a_denied_connection_is_a_reset_that_the_guest_accepts() {
    for target in [FAR, FAR6] {
        let mut filter = filter(r#"{"default":"deny"}"#);
        let syn = Path::to(target).tcp([4000, 443], "S");
        let Outcome::Stop(Cause::Denied { protocol, far, .. }, Some(answer)) = out(&mut filter, &syn) else {
            panic!("{target}")
        };
        assert_eq!((protocol, far), (Some(Protocol::Tcp), (address(target), 443)));
        let reset = Frame::parse(&answer, answer.len()).unwrap();
        assert_eq!((reset.source, reset.target), (GATEWAY, US));
        let Content::Packet(packet) = reset.content else { panic!("{reset:?}") };
        assert_eq!(packet.source, address(target));
        let Transport::Tcp(segment) = packet.transport else { panic!("{packet:?}") };
        assert!(segment.flags.rst && segment.flags.ack);
        // RFC 9293: a SYN is acknowledged, and the reset has the sequence number 0.
        assert_eq!((segment.source, segment.target), (443, 4000));
        assert_eq!((segment.sequence, segment.acknowledged), (0, 1001));
        // A segment with ACK: the reset is where the guest expects the next byte.
        let middle = Path::to(target).tcp([4000, 443], "A");
        let (_, answer) = match out(&mut filter, &middle) {
            Outcome::Stop(cause, Some(answer)) => (cause, answer),
            outcome => panic!("{outcome:?}"),
        };
        let Content::Packet(packet) = Frame::parse(&answer, answer.len()).unwrap().content else { panic!() };
        let Transport::Tcp(segment) = packet.transport else { panic!("{packet:?}") };
        assert!(segment.flags.rst && !segment.flags.ack);
        assert_eq!(segment.sequence, 77);
    }
}

#[test]
fn answer_to_a_denied_datagram_quotes_it() {
    for (target, kind, code) in [(FAR, 3, 13), (FAR6, 1, 1)] {
        let mut filter = filter(r#"{"default":"deny"}"#);
        let frame = Path::to(target).udp([5000, 9]);
        let Outcome::Stop(_, Some(answer)) = out(&mut filter, &frame) else { panic!("{target}") };
        let Content::Packet(packet) = Frame::parse(&answer, answer.len()).unwrap().content else { panic!() };
        let Transport::Icmp { kind: found, code: found_code, .. } = packet.transport else {
            panic!("{packet:?}")
        };
        assert_eq!((found, found_code), (kind, code));
        let quoted = &answer[packet.payload.0..packet.payload.1];
        assert_eq!(quoted, &frame[14..][..quoted.len()]);
        assert!(quoted.len() >= 28);
    }
}

#[test]
fn nothing_answers_a_reset_or_a_message_to_a_group() {
    let mut filter = filter(r#"{"default":"deny"}"#);
    for frame in [
        Path::to(FAR).tcp([4000, 443], "R"),
        Path::to("224.0.0.251").udp([5353, 5353]),
        Path::to("ff02::fb").udp([5353, 5353]),
        Path::to("255.255.255.255").udp([1, 2]),
    ] {
        let outcome = out(&mut filter, &frame);
        assert!(matches!(outcome, Outcome::Stop(Cause::Denied { .. }, None)), "{outcome:?}");
    }
    let error = Path::to(FAR).icmp(3, &[0; 28]);
    assert_eq!(out(&mut filter, &error), Outcome::Stop(Cause::Unknown, None));
}

#[test]
fn reset_is_for_a_whole_segment_alone() {
    let syn = Path::to(FAR).tcp([4000, 443], "S");
    let reset = crate::reset_for(&syn).unwrap();
    let Content::Packet(packet) = Frame::parse(&reset, reset.len()).unwrap().content else { panic!() };
    assert!(matches!(packet.transport, Transport::Tcp(segment) if segment.flags.rst && segment.flags.ack));
    assert_eq!(crate::reset_for(&Path::to(FAR).tcp([4000, 443], "R")), None);
    assert_eq!(crate::reset_for(&Path::to(FAR).udp([4000, 443])), None);
    assert_eq!(crate::reset_for(&syn[..syn.len() - 1]), None);
}

#[test]
fn spoofed_senders_are_dropped() {
    let mut filter = filter("{}");
    let foreign_mac = Path { macs: [GATEWAY, US], ..Path::to(FAR) };
    for (frame, cause) in [
        (foreign_mac.udp([1, 2]), "foreign hardware address"),
        (Path::between("10.118.111.16", FAR).udp([1, 2]), "foreign address"),
        (Path::between("0.0.0.0", FAR).udp([1, 2]), "foreign address"),
        (Path::between("127.0.0.1", FAR).tcp([1, 2], "S"), "foreign address"),
        (Path::between("2001:db8::9", FAR6).udp([1, 2]), "foreign address"),
        (Path::between("::", FAR6).udp([1, 2]), "foreign address"),
        (Path::between("fd76:6f6c:7401::15", FAR6).udp([1, 2]), "foreign address"),
        (arp(US, "10.118.111.2"), "foreign neighbour"),
        (arp(GATEWAY, OWN), "foreign neighbour"),
    ] {
        assert_eq!(stopped(&out(&mut filter, &frame)), (cause.to_owned(), false));
    }
    for frame in [
        arp(US, OWN),
        arp(US, "0.0.0.0"),
        Path::between("fd76:6f6c:7400::abcd", FAR6).udp([1, 2]),
        Path::between("fe80::1", FAR6).udp([1, 2]),
    ] {
        assert_eq!(out(&mut filter, &frame), Outcome::Pass);
    }
}

/// An option of neighbour discovery with a hardware address.
pub(super) fn option(kind: u8, mac: Mac) -> Vec<u8> {
    [&[kind, 1][..], &mac].concat()
}

pub(super) fn octets(text: &str) -> [u8; 16] {
    text.parse::<Ipv6Addr>().unwrap().octets()
}

#[test]
fn link_is_configured_whatever_the_policy_says() {
    let mut filter = filter(r#"{"default":"deny"}"#);
    let (own, foreign) = (octets(OWN6), octets("fd76:6f6c:7401::2"));
    let solicited = "ff02::1:ff00:2";
    let offer = Path::between("10.118.111.2", "255.255.255.255").udp([67, 68]);
    assert_eq!(stopped(&into(&mut filter, &offer)).0, "of no connection", "the guest has not asked");
    for frame in [
        Path::between("0.0.0.0", "255.255.255.255").udp(DHCP),
        Path::between("fe80::1", "ff02::1:2").udp(DHCP6),
        Path::between("fe80::1", "ff02::2").near().icmp(133, &option(1, US)),
        Path::between("::", solicited).near().icmp(135, &own),
        Path::between(OWN6, solicited).near().icmp(135, &[&foreign[..], &option(1, US)].concat()),
        Path::between(OWN6, "fd76:6f6c:7400::2").near().icmp(135, &foreign),
        Path::between(OWN6, "fe80::2").near().icmp(136, &[&own[..], &option(2, US)].concat()),
        Path::between(OWN6, "ff02::1").near().icmp(136, &own),
    ] {
        assert_eq!(out(&mut filter, &frame), Outcome::Pass);
    }
    let gateway = "fe80::2";
    for frame in [
        offer,
        Path::between(gateway, "fe80::1").udp([547, 546]),
        Path::between(gateway, "ff02::1").near().icmp(134, &[0; 8]),
        Path::between(gateway, OWN6).near().icmp(135, &own),
    ] {
        assert_eq!(into(&mut filter, &frame), Outcome::Pass);
    }
    for frame in [
        Path::between(gateway, OWN6).near().icmp(137, &[0; 32]),
        Path::between("2001:db8::2", "fe80::1").udp([547, 546]),
    ] {
        assert_eq!(stopped(&into(&mut filter, &frame)).0, "of no connection");
    }
}

#[test]
fn messages_of_the_link_have_one_form_and_one_place() {
    let mut filter = filter(r#"{"default":"deny"}"#);
    let (own, foreign) = (octets(OWN6), octets("fd76:6f6c:7401::2"));
    let (solicited, near) = ("ff02::1:ff00:2", |to| Path::between(OWN6, to).near());
    let other_mac = Path { macs: [US, GATEWAY], ..near(solicited) };
    let asks = Path::between("0.0.0.0", "255.255.255.255");
    for (frame, cause) in [
        // A neighbour that is none: routers would carry the message to any machine.
        (near(FAR6).icmp(135, &own), "foreign neighbour"),
        (near("ff0e::1:ff00:2").icmp(135, &own), "foreign neighbour"),
        (near("ff02::1").icmp(135, &own), "foreign neighbour"),
        (near("ff02::1").icmp(133, &[]), "foreign neighbour"),
        (near(solicited).icmp(136, &own), "foreign neighbour"),
        (other_mac.icmp(135, &own), "foreign neighbour"),
        (near(solicited).icmp(135, &[&own[..], &[14; 64]].concat()), "foreign neighbour"),
        (near(solicited).icmp(135, &[&own[..], &option(1, GATEWAY)].concat()), "foreign neighbour"),
        (near(solicited).icmp(135, &[&own[..], &[9, 0, 0, 0]].concat()), "foreign neighbour"),
        (near(solicited).icmp(135, &[&own[..], &[1, 1, 0]].concat()), "foreign neighbour"),
        (near("fe80::2").icmp(136, &foreign), "foreign neighbour"),
        (near("fe80::2").icmp(136, &[&own[..], &option(2, GATEWAY)].concat()), "foreign neighbour"),
        (near("fe80::2").icmp(136, &[0; 4]), "wrong length"),
        (Path::between("2001:db8::9", solicited).near().icmp(135, &own), "foreign address"),
        (Path::between(OWN6, solicited).icmp(135, &own), "of no connection"),
        (near("ff02::2").icmp(137, &own), "of no connection"),
        (near("ff02::1").icmp(134, &own), "of no connection"),
        (Path::to("192.0.2.9").udp(DHCP), "no rule"),
        (Path::between("fe80::1", FAR6).udp(DHCP6), "no rule"),
        (Path { macs: [US, GATEWAY], ..asks }.udp(DHCP), "foreign neighbour"),
        (Path::between("10.118.111.16", "255.255.255.255").udp(DHCP), "foreign address"),
        ([arp(US, OWN), vec![7; 40]].concat(), "foreign neighbour"),
    ] {
        assert_eq!(stopped(&out(&mut filter, &frame)), (cause.to_owned(), cause == "no rule"), "{frame:?}");
    }
}

#[test]
fn guest_reports_its_groups_in_the_usual_form() {
    let mut filter = filter(r#"{"default":"deny"}"#);
    let report = |next: u8, alert: [u8; 8], kind: u8, hops: u8, to: &str| {
        let path = Path { hops, ..Path::between("fe80::1", to) };
        let body = [&alert[..], &[kind, 0, 0, 0, 0, 0, 0, 0]].concat();
        let mut bytes = Vec::new();
        path.packet().icmpv6_raw(0, 0, [0; 4]).write(&mut bytes, &body).unwrap();
        // The header of ICMPv6 that the builder wrote makes room for the one before.
        bytes.drain(14 + 40..14 + 48);
        (bytes[18], bytes[19], bytes[20]) = (0, body.len() as u8, next);
        bytes
    };
    let alert = [58, 0, 5, 2, 0, 0, 1, 0];
    assert_eq!(out(&mut filter, &report(0, alert, 143, 1, "ff02::16")), Outcome::Pass);
    for (frame, cause) in [
        (report(0, alert, 143, 2, "ff02::16"), "options or extension header"),
        (report(0, alert, 143, 1, "ff0e::16"), "options or extension header"),
        (report(0, alert, 128, 1, "ff02::16"), "foreign neighbour"),
        (report(0, alert, 130, 1, "ff02::1"), "foreign neighbour"),
        (report(0, [6, 0, 5, 2, 0, 0, 1, 0], 143, 1, "ff02::16"), "options or extension header"),
        (report(43, alert, 143, 1, "ff02::16"), "options or extension header"),
    ] {
        assert_eq!(stopped(&out(&mut filter, &frame)).0, cause);
    }
    assert_eq!(into(&mut filter, &report(0, alert, 130, 1, "ff02::1")), Outcome::Pass);
    assert_eq!(stopped(&into(&mut filter, &report(0, alert, 143, 1, "ff02::16"))).0, "of no connection");
}

#[test]
fn host_fills_in_the_packet_s_own_checksum_alone() {
    let mut filter = filter("{}");
    let tcp = [Path::to(FAR), Path::to(FAR6)].map(|path| path.tcp([4000, 443], "S"));
    let udp = [Path::to(FAR), Path::to(FAR6)].map(|path| path.udp([4000, 443]));
    let starts = [34, 54];
    let mut judge = |frame: &[u8], checksum: Option<(u16, u16)>, segments: Option<Version>| {
        let offload = Offload { checksum, segments };
        let outcome = filter.outgoing(&frame[..frame.len().min(HEAD)], frame.len(), offload, Instant::now());
        stopped(&outcome).0
    };
    for (number, start) in starts.into_iter().enumerate() {
        let version = [Version::V4, Version::V6][number];
        let other = [Version::V6, Version::V4][number];
        for (frame, offset) in [(&tcp[number], 16), (&udp[number], 6)] {
            assert_eq!(judge(frame, Some((start, offset)), None), "Pass");
            // A port, an address, the payload, and nothing at all.
            for wrong in
                [(start, 2), (start, 0), (start - 20, offset), (20, 18), (start + 8, offset), (start, 40)]
            {
                assert_eq!(judge(frame, Some(wrong), None), "wrong offload", "{wrong:?}");
            }
            assert_eq!(judge(frame, Some((start, offset)), Some(other)), "wrong offload");
        }
        assert_eq!(judge(&tcp[number], Some((start, 16)), Some(version)), "Pass");
        assert_eq!(judge(&udp[number], Some((start, 6)), Some(version)), "wrong offload");
    }
    for frame in [Path::to(FAR).icmp(8, b"ping"), arp(US, OWN)] {
        assert_eq!(judge(&frame, None, None), "Pass");
        assert_eq!(judge(&frame, Some((34, 2)), None), "wrong offload");
    }
}

#[test]
fn guest_behind_a_tap_may_not_be_the_host_and_finds_its_neighbours() {
    let mut filter = filter("{}");
    filter.interface.addresses.clear();
    for (frame, cause) in [
        (Path::between("198.51.100.7", FAR).udp([1, 2]), "foreign address"),
        (Path::between("127.0.0.1", FAR).udp([1, 2]), "foreign address"),
        (Path::between("0.0.0.0", FAR).udp([1, 2]), "foreign address"),
        (Path::between("::1", FAR6).udp([1, 2]), "foreign address"),
        (arp(US, "198.51.100.7"), "foreign neighbour"),
        (arp(US, "127.0.0.1"), "foreign neighbour"),
    ] {
        assert_eq!(stopped(&out(&mut filter, &frame)).0, cause);
    }
    let (own, peer) = ("2001:db8::15", "2001:db8::2");
    assert_eq!(out(&mut filter, &arp(US, "10.9.8.7")), Outcome::Pass);
    let advertises = Path::between(own, peer).near().icmp(136, &octets(own));
    assert_eq!(stopped(&out(&mut filter, &advertises)).0, "foreign neighbour");
    // The peer asks from its own address, with a hop limit that proves that it is on the link.
    let asks = Path::between(peer, own).near().icmp(135, &octets(own));
    assert_eq!(into(&mut filter, &asks), Outcome::Pass);
    assert_eq!(out(&mut filter, &advertises), Outcome::Pass);
    for number in 0..40 {
        let other = format!("2001:db8::1:{number:x}");
        into(&mut filter, &Path::between(&other, own).near().icmp(135, &octets(own)));
    }
    assert_eq!(filter.neighbours.len(), MOST_NEIGHBOURS);
    assert_eq!(stopped(&out(&mut filter, &advertises)).0, "foreign neighbour", "it was long ago");
}

#[test]
fn bytes_behind_a_packet_do_not_become_its_payload() {
    let mut filter = filter("{}");
    let there = Path::to(FAR);
    let mut longer = there.tcp([5000, 443], "S");
    longer.extend([7; 100]);
    let offload = |segments| Offload { checksum: Some((34, 16)), segments };
    for offload in [offload(Some(Version::V4)), offload(None)] {
        let outcome = filter.outgoing(&longer, longer.len(), offload, Instant::now());
        assert_eq!(outcome, drop_of(Malformed::Offload));
    }
    assert_eq!(out(&mut filter, &longer), Outcome::Pass, "padding");
}

#[test]
fn guest_does_not_answer_in_the_place_of_a_far_side() {
    let mut filter = filter("{}");
    filter.interface.addresses.clear();
    let there = Path::between("198.18.0.1", FAR);
    assert_eq!(out(&mut filter, &there.tcp([5000, 443], "S")), Outcome::Pass);
    let forged = Path { macs: there.macs, ..there.back() };
    assert_eq!(out(&mut filter, &forged.tcp([443, 5000], "S")), drop_of(Malformed::Address));
}

#[test]
fn far_side_does_not_take_the_place_of_a_connection_by_a_forward() {
    let mut filter = filter(r#"{"default":"deny","allow":["192.0.2.0/24"]}"#);
    let there = Path::to(FAR);
    assert_eq!(out(&mut filter, &there.tcp([80, 443], "S")), Outcome::Pass);
    assert_eq!(stopped(&into(&mut filter, &there.back().tcp([443, 80], "S"))).0, "of no connection");
}

#[test]
fn questions_end_in_the_device_wherever_they_go() {
    let mut filter = filter(r#"{"default":"deny"}"#);
    for target in [RESOLVER, FAR, FAR6, "127.0.0.1"] {
        assert_eq!(out(&mut filter, &Path::to(target).udp([5000, 53])), Outcome::Take(Taken::Question));
        assert_eq!(out(&mut filter, &Path::to(target).tcp([5000, 53], "S")), Outcome::Take(Taken::Question));
        assert_eq!(out(&mut filter, &Path::to(target).tcp([5000, 53], "A")), Outcome::Take(Taken::Question));
    }
    for frame in [Path::to(RESOLVER).udp([5000, 54]), Path::to(RESOLVER).icmp(8, b"")] {
        assert_eq!(stopped(&out(&mut filter, &frame)).0, "private address");
    }
    let there = Path::to(RESOLVER);
    let frame = there.udp([5000, 53]);
    let (datagram, content) = crate::dns::Datagram::parse(&frame).unwrap();
    assert_eq!(content, b"data");
    let answer = datagram.answer(b"answer").unwrap();
    let parsed = Frame::parse(&answer, answer.len()).unwrap();
    let Content::Packet(packet) = parsed.content else { panic!("{parsed:?}") };
    assert_eq!((parsed.source, parsed.target), (GATEWAY, US));
    assert_eq!((packet.source, packet.target), (address(RESOLVER), address(OWN)));
    assert_eq!(packet.transport, Transport::Udp { source: 53, target: 5000 });
}
