//! A policy between the guest and a backend.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use volt_policy::{Copied, HostNetwork, Judge, Name, Offload, Policy, Taken};

use super::guard::{Guard, Passage};
use super::*;
use crate::sync::lock;

const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const FAR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const SYN: u8 = 2;
const SYN_ACK: u8 = 0x12;
const ACK: u8 = 0x10;
const RST: u8 = 4;

fn judge(policy: &str) -> Arc<Judge> {
    let policy: Policy = serde_json::from_str(policy).unwrap();
    Arc::new(Judge::new(&policy, []).unwrap())
}

fn guarded(wire: Wire, policy: &str) -> Net {
    let config = config(NetBackend::Tap("unused".into()));
    let mut net = Net::new(&config, [2; 6], Box::new(wire));
    net.obey(&config, Some(&judge(policy)), &Arc::default());
    net
}

/// A segment between ports 4000 of the guest and 443 of the far side.
fn segment(from: Ipv4Addr, to: Ipv4Addr, flags: u8) -> Vec<u8> {
    let mut ip = [0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    ip[12..16].copy_from_slice(&from.octets());
    ip[16..].copy_from_slice(&to.octets());
    let sum: u32 = ip.as_chunks().0.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let is_of_guest = from == GUEST;
    let ports = if is_of_guest { [15, 160, 1, 187] } else { [1, 187, 15, 160] };
    let macs = if is_of_guest { [[4; 6], [2; 6]] } else { [[2; 6], [4; 6]] };
    let tcp = [0, 0, 0, 9, 0, 0, 0, 5, 0x50, flags, 0x10, 0, 0, 0, 0, 0];
    [&macs.concat()[..], &[8, 0], &ip, &ports, &tcp].concat()
}

#[test]
fn allowed_connection_passes_and_a_denied_one_is_reset_by_the_device() {
    let (end, other) = wire();
    let mut driver = Driver::new(guarded(end, r#"{"default":"deny","allow":["192.0.2.0/24:443"]}"#));
    for _ in 0..4 {
        driver.send(IN, &[Part::In(2000)]);
    }
    let denied = segment(GUEST, Ipv4Addr::new(203, 0, 113, 1), SYN);
    let allowed = segment(GUEST, FAR, SYN);
    for sent in [&denied, &allowed] {
        driver.send(OUT, &[Part::Out(&with_header(sent))]);
        driver.wait(OUT);
    }
    assert_eq!(next_on(&other), with_header(&allowed), "the backend gets no other frame");
    let reset = next_in(&mut driver);
    assert_eq!((&reset[26..30], reset[47] & RST), (&[203, 0, 113, 1][..], RST));
    // An answer passes. A connection from outside does not.
    other.send(&with_header(&segment(Ipv4Addr::new(192, 0, 2, 2), GUEST, SYN))).unwrap();
    let answer = segment(FAR, GUEST, SYN_ACK);
    other.send(&with_header(&answer)).unwrap();
    assert_eq!(next_in(&mut driver), answer);
}

#[test]
fn frame_in_pieces_is_judged_and_sent_whole() {
    let (end, other) = wire();
    let mut driver = Driver::new(guarded(end, "{}"));
    let long = [segment(GUEST, FAR, SYN), vec![7; 900]].concat();
    let mut whole = with_header(&long);
    // The length of IPv4 is that of the segment: the rest is padding, which goes along.
    driver.send(OUT, &[Part::Out(&whole[..20]), Part::Out(&whole[20..300]), Part::Out(&whole[300..])]);
    driver.wait(OUT);
    assert_eq!(next_on(&other), whole);
    // A foreign address in the second piece.
    whole[12 + 26] ^= 0x80;
    driver.send(OUT, &[Part::Out(&whole[..20]), Part::Out(&whole[20..])]);
    driver.wait(OUT);
    driver.send(OUT, &[Part::Out(&with_header(&segment(GUEST, FAR, SYN)))]);
    driver.wait(OUT);
    assert_eq!(next_on(&other), with_header(&segment(GUEST, FAR, SYN)));
}

#[test]
fn guest_is_told_of_the_end_of_its_connections_after_a_restore() {
    let (end, other) = wire();
    let same = end.0.try_clone().unwrap();
    let mut driver = Driver::new(guarded(end, "{}"));
    for _ in 0..3 {
        driver.send(IN, &[Part::In(2000)]);
    }
    for (is_of_guest, flags) in [(true, SYN), (false, SYN_ACK), (true, ACK)] {
        if is_of_guest {
            driver.send(OUT, &[Part::Out(&with_header(&segment(GUEST, FAR, flags)))]);
            driver.wait(OUT);
            next_on(&other);
        } else {
            other.send(&with_header(&segment(FAR, GUEST, flags))).unwrap();
            next_in(&mut driver);
        }
    }
    driver.move_to(guarded(Wire(same), "{}"));
    let reset = next_in(&mut driver);
    // From the far side, with the number that the guest expects next.
    assert_eq!((&reset[26..30], &reset[38..42], reset[47]), (&FAR.octets()[..], &[0, 0, 0, 5][..], RST));
    assert_eq!((&reset[..6], &reset[6..12]), (&[2; 6][..], &[4; 6][..]));
    // Its answer, if the number is wrong for it, gets the right one.
    driver.send(OUT, &[Part::Out(&with_header(&segment(GUEST, FAR, ACK)))]);
    driver.wait(OUT);
    let reset = next_in(&mut driver);
    assert_eq!((&reset[26..30], reset[47]), (&FAR.octets()[..], RST));
}

#[test]
fn far_side_is_told_of_the_end_of_its_connections_after_a_rewind() {
    let mut net = guarded(wire().0, "{}");
    let guard = net.services.guard.as_mut().unwrap();
    for flags in [SYN, ACK] {
        let sent = segment(GUEST, FAR, flags);
        assert_eq!(guard.outgoing(&sent, sent.len(), Offload::default()), Passage::Passes);
        assert_eq!(guard.incoming(&segment(FAR, GUEST, SYN_ACK), true), Passage::Passes);
    }
    let state = net.save().unwrap();
    // As the transport does at a rewind.
    net.reset();
    net.restore(&state).unwrap();
    let guard = net.services.guard.as_mut().unwrap();
    let to_far = guard.next_unsent().unwrap().frame.clone();
    assert_eq!((&to_far[30..34], &to_far[38..42], to_far[47]), (&FAR.octets()[..], &[0, 0, 0, 9][..], RST));
    guard.sent();
    assert!(guard.next_unsent().is_none());
    assert_eq!(guard.next_answer().unwrap()[47], RST);
    // Once told, neither side is told again.
    let state = net.save().unwrap();
    net.reset();
    net.restore(&state).unwrap();
    assert!(!net.services.guard.as_ref().unwrap().has_answers());
}

#[test]
fn relayed_connections_end_for_both_sides_with_their_policy() {
    let mut net = guarded(wire().0, r#"{"default":"deny","allow":["good.test:80"]}"#);
    let guard = net.services.guard.as_mut().unwrap();
    let name = Name::parse("good.test").unwrap();
    guard.filter().pin(&name, &[(FAR.into(), 60)], Instant::now());
    let copied = |frame: &[u8]| Copied::made(frame.to_vec());
    let number = |frame: &[u8], at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
    let from_guest = |guard: &mut Guard, flags, numbers| {
        let frame = http(GUEST, flags, numbers);
        let passage = guard.outgoing(&frame, frame.len(), Offload::default());
        assert_eq!(passage, Passage::Takes(Taken::Request));
        guard.take(Taken::Request, &copied(&frame), Offload::default());
    };
    from_guest(guard, SYN, (9, 0));
    let syn = guard.next_unsent().unwrap().frame.clone();
    guard.sent();
    let from_far = http(FAR, SYN_ACK, (77, number(&syn, 38).wrapping_add(1)));
    assert_eq!(guard.incoming(&from_far, false), Passage::Takes(Taken::Request));
    let answer = guard.next_answer().unwrap();
    assert_eq!(answer[47], SYN_ACK);
    let expected = number(&answer, 38).wrapping_add(1);
    from_guest(guard, ACK, (10, expected));
    while guard.next_unsent().is_some() {
        guard.sent();
    }
    net.obey(&config(NetBackend::Tap("unused".into())), None, &Arc::default());
    assert!(net.services.guard.is_none());
    // Another policy does not lose them.
    net.obey(&config(NetBackend::Tap("unused".into())), Some(&judge("{}")), &Arc::default());
    let to_far = net.services.next_unsent().unwrap().frame.clone();
    assert_eq!((&to_far[30..34], to_far[47] & RST), (&FAR.octets()[..], RST));
    net.services.sent();
    assert!(net.services.next_unsent().is_none() && net.services.work(Instant::now()));
    let to_guest = net.services.next_frame().unwrap();
    assert_eq!((&to_guest[26..30], number(&to_guest, 38), to_guest[47]), (&FAR.octets()[..], expected, RST));
    assert!(net.services.next_frame().is_none() && !net.services.work(Instant::now()));
}

#[test]
fn version_of_ip_that_comes_after_passt_is_none_that_it_serves() {
    let mut net = guarded(wire().0, "{}");
    let passt = config(NetBackend::Passt { forward: vec![] });
    net.obey(&passt, None, &Arc::default());
    let on = |routes_v4, routes_v6| {
        let network = HostNetwork { addresses: vec![], routes_v4, routes_v6 };
        Arc::new(judge("{}").with_host(&network))
    };
    let far_v6 = "2001:db8::1".parse().unwrap();
    for (routes, is_routed) in [((true, false), (true, false)), ((false, true), (false, false))] {
        net.obey(&passt, Some(&on(routes.0, routes.1)), &Arc::default());
        net.services.guard.as_mut().unwrap().change(on(routes.0, routes.1));
        let judge = net.services.guard.as_mut().unwrap().filter().judge().clone();
        assert_eq!((judge.is_routed(FAR.into()), judge.is_routed(far_v6)), is_routed);
    }
    net.services.guard.as_mut().unwrap().change(on(true, true));
    let judge = net.services.guard.as_mut().unwrap().filter().judge().clone();
    assert_eq!((judge.is_routed(FAR.into()), judge.is_routed(far_v6)), (true, false));
}

/// A segment between ports 4000 of the guest and 80 of the far side, with its number and acknowledgement.
fn http(from: Ipv4Addr, flags: u8, (number, acknowledged): (u32, u32)) -> Vec<u8> {
    let to = if from == GUEST { FAR } else { GUEST };
    let mut frame = segment(from, to, flags);
    let port = if from == GUEST { 36 } else { 34 };
    frame[port..port + 2].copy_from_slice(&80_u16.to_be_bytes());
    frame[38..42].copy_from_slice(&number.to_be_bytes());
    frame[42..46].copy_from_slice(&acknowledged.to_be_bytes());
    // Addresses, protocol and length come before the segment (RFC 9293, section 3.1).
    let summed = [&frame[26..34], &[0, 6, 0, 20], &frame[34..54]].concat();
    let sum: u32 = summed.as_chunks().0.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[50..52].copy_from_slice(&sum.to_be_bytes());
    frame
}

#[test]
fn policy_changes_while_the_guest_runs() {
    let (end, other) = wire();
    let device = Arc::new(Mutex::new(net(end)));
    let mut driver = Driver::around(Arc::clone(&device) as _, !EVENT_IDX);
    let send = |driver: &mut Driver, frame: &[u8]| {
        driver.send(OUT, &[Part::Out(&with_header(frame))]);
        driver.wait(OUT);
    };
    let opening = segment(GUEST, FAR, SYN);
    send(&mut driver, &opening);
    assert_eq!(next_on(&other), with_header(&opening));
    let config = config(NetBackend::Tap("unused".into()));
    lock(&device).obey(&config, Some(&judge(r#"{"default":"deny"}"#)), &Arc::default());
    send(&mut driver, &opening);
    lock(&device).obey(&config, None, &Arc::default());
    send(&mut driver, &frame(1, 60));
    assert_eq!(next_on(&other), with_header(&frame(1, 60)), "the frame between was denied");
}
