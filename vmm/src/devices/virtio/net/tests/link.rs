//! The service of a link beside a backend.

use std::net::Ipv4Addr;

use etherparse::{Icmpv6Type, PacketBuilder};

use super::link_answers::Link;
use super::link_service::LinkService;
use super::*;
use crate::config::user_network::{IPV4, IPV6};

const GUEST: [u8; 6] = [2; 6];
const ROUTER: [u8; 6] = [4; 6];

fn on_link(wire: Wire) -> Net {
    let mut net = Net::new(&config(NetBackend::Nat {}), GUEST, Box::new(wire));
    let link = Link { router: ROUTER, mtu: 1500, has_v6: true };
    net.services.link = Some(Box::new(LinkService::new("eth0", link)));
    net
}

fn discover() -> Vec<u8> {
    let mut message = vec![0; 240];
    message[..4].copy_from_slice(&[1, 1, 6, 0]);
    message[236..].copy_from_slice(&[99, 130, 83, 99]);
    message.extend([53, 1, 1, 255]);
    let packet = PacketBuilder::ethernet2(GUEST, [0xff; 6]).ipv4([0; 4], [255; 4], 64).udp(68, 67);
    let mut frame = Vec::new();
    packet.write(&mut frame, &message).unwrap();
    frame
}

fn solicitation() -> Vec<u8> {
    let kind = Icmpv6Type::Unknown { type_u8: 133, code_u8: 0, bytes5to8: [0; 4] };
    let mut all_routers = [0; 16];
    (all_routers[0], all_routers[1], all_routers[15]) = (0xff, 2, 2);
    let packet = PacketBuilder::ethernet2(GUEST, [0x33, 0x33, 0, 0, 0, 2]);
    let mut frame = Vec::new();
    packet.ipv6([0; 16], all_routers, 255).icmpv6(kind).write(&mut frame, &[]).unwrap();
    frame
}

fn datagram(to: Ipv4Addr, port: u16, content: &[u8]) -> Vec<u8> {
    let packet = PacketBuilder::ethernet2(GUEST, ROUTER).ipv4(IPV4.address.octets(), to.octets(), 64);
    let mut frame = Vec::new();
    packet.udp(4000, port).write(&mut frame, content).unwrap();
    frame
}

fn is_advertisement(frame: &[u8]) -> bool {
    frame[6..12] == ROUTER && frame[54] == 134
}

fn send(driver: &mut Driver, frame: &[u8]) {
    driver.send(OUT, &[Part::Out(&with_header(frame))]);
    driver.wait(OUT);
}

#[test]
fn device_answers_for_the_router_and_other_frames_reach_the_backend() {
    let (end, other) = wire();
    let mut driver = Driver::new(on_link(end));
    for _ in 0..4 {
        driver.send(IN, &[Part::In(2000)]);
    }
    send(&mut driver, &discover());
    let offer = next_in(&mut driver);
    assert_eq!((&offer[..6], &offer[58..62]), (&GUEST[..], &IPV4.address.octets()[..]));
    send(&mut driver, &solicitation());
    assert!(is_advertisement(&next_in(&mut driver)));
    // Not a question, so that no server of the host is asked.
    send(&mut driver, &datagram(IPV4.resolver, 53, b"no question"));
    let elsewhere = datagram(Ipv4Addr::new(192, 0, 2, 1), 53, b"elsewhere");
    send(&mut driver, &elsewhere);
    assert_eq!(next_on(&other), with_header(&elsewhere), "the backend gets no other frame");
}

#[test]
fn guest_that_has_solicited_its_router_hears_of_it_after_a_restore() {
    for has_solicited in [true, false] {
        let (end, _other) = wire();
        let mut driver = Driver::new(on_link(end));
        if has_solicited {
            driver.send(IN, &[Part::In(2000)]);
            send(&mut driver, &solicitation());
            assert!(is_advertisement(&next_in(&mut driver)));
        }
        let (end, other) = wire();
        driver.move_to(on_link(end));
        driver.send(IN, &[Part::In(2000)]);
        if has_solicited {
            let advertised = next_in(&mut driver);
            assert!(is_advertisement(&advertised) && advertised[38..54] != IPV6.address.octets());
        } else {
            other.send(&with_header(&frame(1, 60))).unwrap();
            assert_eq!(next_in(&mut driver), frame(1, 60));
        }
    }
}

#[test]
fn policy_takes_the_questions_and_leaves_the_link() {
    let (end, other) = wire();
    let mut net = on_link(end);
    let policy = serde_json::from_str(r#"{"default":"deny"}"#).unwrap();
    let judge = Arc::new(Judge::new(&policy, []).unwrap());
    net.obey(&config(NetBackend::Nat {}), Some(&judge), &Arc::default());
    assert!(!net.services.link.as_ref().unwrap().wants(&datagram(IPV4.resolver, 53, &[0; 12]), 54));
    let mut driver = Driver::new(net);
    driver.send(IN, &[Part::In(2000)]);
    send(&mut driver, &discover());
    assert_eq!(next_in(&mut driver)[58..62], IPV4.address.octets());
    other.set_nonblocking(true).unwrap();
    assert!(other.recv(&mut [0; 2000]).is_err(), "the backend gets no frame");
}
