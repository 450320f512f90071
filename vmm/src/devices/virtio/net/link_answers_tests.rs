//! Frames of clients of DHCP, and of guests that look for a router.

use proptest::prelude::*;

use super::*;

const GUEST: Mac = [2, 0, 0, 0, 0, 7];
const ROUTER_MAC: Mac = [2, 0, 0, 0, 0, 1];

fn link() -> Link {
    Link { router: ROUTER_MAC, mtu: 1400, has_v6: true }
}

/// A message of a client with these options, in a frame.
fn message(from: Ipv4Addr, flags: u8, options: &[&[u8]]) -> Vec<u8> {
    let mut bytes = vec![0; OPTIONS];
    bytes[..8].copy_from_slice(&[1, 1, 6, 0, 9, 8, 7, 6]);
    bytes[FLAGS.start] = flags;
    bytes[CLIENT].copy_from_slice(&from.octets());
    bytes[28..34].copy_from_slice(&GUEST);
    bytes[COOKIE].copy_from_slice(&MAGIC);
    bytes.extend([options.concat(), vec![END]].concat());
    let [to, target] = DHCP;
    let packet = PacketBuilder::ethernet2(GUEST, [0xff; 6]).ipv4(from.octets(), [255; 4], 64).udp(to, target);
    let mut frame = Vec::new();
    packet.write(&mut frame, &bytes).unwrap();
    frame
}

/// The answer to a message: its address on the link and of IP, its kind, and the message.
fn answered(frame: &[u8]) -> Option<(Mac, IpAddr, u8, Vec<u8>)> {
    assert_eq!(request(&frame[..frame.len().min(volt_policy::HEAD)], frame.len()), Some(LinkRequest::Dhcp));
    let answer = answer(frame, &link())?;
    let (headers, packet) = packet(&answer, answer.len()).unwrap();
    assert_eq!((headers.source, packet.source), (ROUTER_MAC, IPV4.gateway.into()));
    let message = answer[packet.payload.0..packet.payload.1].to_vec();
    assert!(message.len() >= LEAST);
    Some((headers.target, packet.target, option(&message, KIND).unwrap()[0], message))
}

#[test]
fn client_is_offered_the_guests_address_and_gets_it() {
    let (mac, target, kind, offer) = answered(&message(Ipv4Addr::UNSPECIFIED, 0, &[&[KIND, 1, 1]])).unwrap();
    assert_eq!((mac, target, kind), (GUEST, IPV4.address.into(), OFFER));
    assert_eq!(
        (&offer[4..8], &offer[YOURS], &offer[28..34]),
        (&[9, 8, 7, 6][..], &[10, 118, 111, 15][..], &GUEST[..])
    );
    for (number, value) in [
        (SERVER, &[10, 118, 111, 2][..]),
        (ROUTER, &[10, 118, 111, 2]),
        (MASK, &[255, 255, 255, 0]),
        (RESOLVERS, &[10, 118, 111, 3]),
        (MTU, &[0x05, 0x78]),
        (LEASE, &[255; 4]),
    ] {
        assert_eq!(option(&offer, number), Some(value), "{number}");
    }
    let request = [&[KIND, 1, REQUEST][..], &[REQUESTED, 4, 10, 118, 111, 15], &[SERVER, 4, 10, 118, 111, 2]];
    let (mac, target, kind, _) = answered(&message(Ipv4Addr::UNSPECIFIED, 0x80, &request)).unwrap();
    assert_eq!((mac, target, kind), ([0xff; 6], Ipv4Addr::BROADCAST.into(), ACK));
}

#[test]
fn client_with_another_address_is_refused_and_that_of_another_server_left_alone() {
    let wanting = |address: &[u8]| [&[KIND, 1, REQUEST, REQUESTED, 4], address].concat();
    let (mac, target, kind, refusal) =
        answered(&message(Ipv4Addr::UNSPECIFIED, 0, &[&wanting(&[192, 0, 2, 1])])).unwrap();
    assert_eq!((mac, target, kind), ([0xff; 6], Ipv4Addr::BROADCAST.into(), NAK));
    assert_eq!((option(&refusal, LEASE), &refusal[YOURS]), (None, &[0; 4][..]));
    let of_other = [&wanting(&[10, 118, 111, 15])[..], &[SERVER, 4, 192, 0, 2, 1]];
    assert_eq!(answered(&message(Ipv4Addr::UNSPECIFIED, 0, &of_other)), None);
    // A renewal names the address in its own field.
    let (_, target, kind, _) = answered(&message(IPV4.address, 0, &[&[KIND, 1, REQUEST]])).unwrap();
    assert_eq!((target, kind), (IPV4.address.into(), ACK));
    let (.., kind, told) = answered(&message(IPV4.address, 0, &[&[KIND, 1, INFORM]])).unwrap();
    assert_eq!((kind, option(&told, LEASE), &told[YOURS]), (ACK, None, &[0; 4][..]));
    assert_eq!(answered(&message(IPV4.address, 0, &[&[KIND, 1, 7]])), None, "a release");
}

fn solicitation(from: Ipv6Addr, hops: u8) -> Vec<u8> {
    let kind = Icmpv6Type::Unknown { type_u8: 133, code_u8: 0, bytes5to8: [0; 4] };
    let all_routers = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
    let packet = PacketBuilder::ethernet2(GUEST, [0x33, 0x33, 0, 0, 0, 2])
        .ipv6(from.octets(), all_routers.octets(), hops)
        .icmpv6(kind);
    let mut frame = Vec::new();
    packet.write(&mut frame, &[]).unwrap();
    frame
}

#[test]
fn solicited_router_advertises_its_prefix_and_resolver() {
    let from = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 7);
    let advertised = answer(&solicitation(from, 255), &link()).unwrap();
    let (headers, headers_of_ip) = packet(&advertised, advertised.len()).unwrap();
    assert_eq!((headers.target, headers_of_ip.target), (GUEST, from.into()));
    assert_eq!((headers_of_ip.source, headers_of_ip.hop_limit), (LINK_LOCAL.into(), 255));
    let body = &advertised[54..];
    assert_eq!((&body[..2], &body[4..8]), (&[134, 0][..], &[64, 0, 0xff, 0xff][..]));
    let prefix = [&[3, 4, 64, 0xc0][..], &[0xff; 8], &[0; 4], &[0xfd, 0x76, 0x6f, 0x6c, 0x74, 0], &[0; 10]];
    for part in [
        &[1, 1, 2, 0, 0, 0, 0, 1][..],
        &[5, 1, 0, 0, 0, 0, 0x05, 0x78],
        &prefix.concat(),
        &[&[25, 3, 0, 0, 255, 255, 255, 255][..], &IPV6.resolver.octets()].concat(),
    ] {
        assert!(body.windows(part.len()).any(|window| window == part), "{part:?}: {body:?}");
    }
    // A guest without an address.
    let advertised = answer(&solicitation(Ipv6Addr::UNSPECIFIED, 255), &link()).unwrap();
    assert_eq!(advertised[..6], ALL_NODES_MAC);
}

#[test]
fn router_without_ipv6_or_asked_from_afar_advertises_nothing() {
    let near = solicitation(Ipv6Addr::UNSPECIFIED, 255);
    assert_eq!(answer(&near, &Link { has_v6: false, ..link() }), None);
    assert_eq!(request(&near, near.len()), Some(LinkRequest::RouterSolicitation), "it is not forwarded");
    let far = solicitation(Ipv6Addr::UNSPECIFIED, 64);
    assert_eq!((request(&far, far.len()), answer(&far, &link())), (None, None));
}

#[test]
fn questions_are_those_to_the_resolver() {
    let to = |address: Ipv4Addr, port: u16| {
        let packet =
            PacketBuilder::ethernet2(GUEST, ROUTER_MAC).ipv4([10, 118, 111, 15], address.octets(), 64);
        let mut frame = Vec::new();
        packet.udp(4000, port).write(&mut frame, &[0; 20]).unwrap();
        request(&frame, frame.len())
    };
    assert_eq!(to(IPV4.resolver, 53), Some(LinkRequest::Question));
    assert_eq!(
        (to(IPV4.resolver, 54), to(IPV4.gateway, 53), to([192, 0, 2, 1].into(), 53)),
        (None, None, None)
    );
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = (request(&bytes, bytes.len()), answer(&bytes, &link()));
    }

    #[test]
    fn damaged_messages_do_not_panic(
        at in prop::collection::vec((0_usize..400, any::<u8>()), 0..6),
        cut in 0_usize..400,
        options in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        for mut frame in [
            message(Ipv4Addr::UNSPECIFIED, 0, &[&[KIND, 1, REQUEST], &options]),
            solicitation(Ipv6Addr::UNSPECIFIED, 255),
        ] {
            for (at, byte) in &at {
                if let Some(changed) = frame.get_mut(*at) {
                    *changed = *byte;
                }
            }
            frame.truncate(cut.max(frame.len().saturating_sub(cut)));
            let _ = (request(&frame, frame.len()), answer(&frame, &link()));
            // Behind the headers, whatever they say.
            let _ = dhcp(frame.get(42..).unwrap_or_default(), GUEST, &link());
        }
    }
}
