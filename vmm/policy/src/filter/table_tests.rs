//! Connections that come, go and change, through the filter.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::tests::*;
use super::*;
use crate::connections::MOST_CONNECTIONS;
use crate::policy::Policy;

#[test]
fn connection_from_outside_comes_through_a_forward_alone() {
    let mut filter = filter(r#"{"default":"deny"}"#);
    let inward = Path::to("10.118.111.2").back();
    assert_eq!(stopped(&into(&mut filter, &inward.tcp([9000, 22], "S"))).0, "of no connection");
    assert_eq!(stopped(&into(&mut filter, &inward.tcp([9000, 80], "A"))).0, "of no connection");
    assert_eq!(stopped(&into(&mut filter, &inward.udp([9000, 80]))).0, "of no connection");
    assert_eq!(into(&mut filter, &inward.tcp([9000, 80], "S")), Outcome::Pass);
    assert_eq!(out(&mut filter, &inward.back().tcp([80, 9000], "SA")), Outcome::Pass);
    assert_eq!(into(&mut filter, &inward.tcp([9000, 80], "A")), Outcome::Pass);
    // The guest begins nothing there, by the ports of the connection either.
    assert_eq!(stopped(&out(&mut filter, &inward.back().tcp([81, 9000], "S"))).0, "private address");
    assert_eq!(stopped(&out(&mut filter, &inward.back().tcp([80, 9000], "S"))).0, "private address");
}

#[test]
fn errors_about_a_connection_pass_and_others_do_not() {
    let mut filter = filter("{}");
    for (target, router, kind) in [(FAR, "203.0.113.9", 3), (FAR6, "2001:db8:1::9", 2)] {
        let there = Path::to(target);
        let sent = there.udp([5000, 123]);
        let error = |quoted: &[u8], kind| {
            let from = Path::between(router, if target == FAR { OWN } else { OWN6 });
            Path { macs: [GATEWAY, US], ..from }.icmp(kind, quoted)
        };
        let about = error(&sent[14..], kind);
        assert_eq!(stopped(&into(&mut filter, &about)).0, "of no connection");
        assert_eq!(out(&mut filter, &sent), Outcome::Pass);
        assert_eq!(into(&mut filter, &about), Outcome::Pass);
        let other = there.udp([5001, 123]);
        assert_eq!(stopped(&into(&mut filter, &error(&other[14..], kind))).0, "of no connection");
        // A redirect would change the guest's routes.
        assert_eq!(stopped(&into(&mut filter, &error(&sent[14..], 5))).0, "of no connection");
        assert_eq!(stopped(&into(&mut filter, &error(&sent[14..30], kind))).0, "of no connection");
    }
}

#[test]
fn changed_policy_ends_connections_that_it_denies() {
    let mut filter = filter("{}");
    let (web, other) = (Path::to(FAR), Path::to("192.0.2.2"));
    for path in [web, other] {
        assert_eq!(out(&mut filter, &path.tcp([4000, 443], "S")), Outcome::Pass);
        assert_eq!(into(&mut filter, &path.back().tcp([443, 4000], "SA")), Outcome::Pass);
    }
    let policy: Policy = serde_json::from_str(r#"{"default":"deny","allow":["192.0.2.1:443"]}"#).unwrap();
    filter.change(Arc::new(Judge::new(&policy, []).unwrap()), Instant::now());
    assert_eq!(out(&mut filter, &web.tcp([4000, 443], "A")), Outcome::Pass);
    assert_eq!(stopped(&out(&mut filter, &other.tcp([4000, 443], "A"))), ("no rule".to_owned(), true));
    assert_eq!(stopped(&into(&mut filter, &other.back().tcp([443, 4000], "A"))).0, "of no connection");
}

#[test]
fn segment_of_no_connection_is_reset() {
    let mut filter = filter("{}");
    let after_restore = Path::to(FAR).tcp([4000, 443], "A");
    assert_eq!(stopped(&out(&mut filter, &after_restore)), ("of no connection".to_owned(), true));
}

#[test]
fn hundred_thousand_connections_take_bounded_room() {
    let mut filter = filter("{}");
    let begun = Instant::now();
    for number in 0..100_000_u32 {
        let target = Ipv4Addr::from_bits(0xc612_0000 + number).to_string();
        let frame = Path::to(&target).tcp([4000, 443], "S");
        let now = begun + Duration::from_micros(u64::from(number));
        filter.outgoing(&frame, frame.len(), Offload::default(), now);
    }
    assert!(filter.connections() <= MOST_CONNECTIONS);
}

/// A frame of IPv4 with another byte in its header, whose checksum is right.
fn with_header_byte(mut frame: Vec<u8>, at: usize, byte: u8) -> Vec<u8> {
    frame[14 + at] = byte;
    let header = etherparse::Ipv4HeaderSlice::from_slice(&frame[14..]).unwrap().to_header();
    frame[24..26].copy_from_slice(&header.calc_header_checksum().to_be_bytes());
    frame
}

#[test]
fn ten_thousand_hostile_frames_of_each_kind_leave_nothing_and_stop_nothing_else() {
    let mut filter = filter(r#"{"deny":["203.0.113.0/24"]}"#);
    let (there, opening) = (Path::to(FAR), Path::to(FAR).tcp([4000, 443], "S"));
    let tagged = [&opening[..12], &[0x81, 0, 0, 5], &opening[12..]].concat();
    let foreign_mac = Path { macs: [GATEWAY, US], ..there };
    let mut routed = Path::to(FAR6).udp([1, 2]);
    routed[20] = 43; // a routing header in place of UDP
    let mut broken = opening.clone();
    broken[24] ^= 1;
    let kinds: [(Vec<u8>, &str); 14] = [
        (opening[..20].to_vec(), "wrong length"),
        (tagged, "no IP or ARP"),
        (foreign_mac.tcp([1, 2], "S"), "foreign hardware address"),
        (Path::between("10.118.111.16", FAR).udp([1, 2]), "foreign address"),
        (arp(US, "10.118.111.2"), "foreign neighbour"),
        (Path::between(OWN6, FAR6).near().icmp(135, &[7; 16]), "foreign neighbour"),
        (with_header_byte(there.udp([1, 2]), 6, 0x20), "fragment"),
        (routed, "options or extension header"),
        (broken, "wrong checksum"),
        (there.icmp(3, &[0; 8]), "of no connection"),
        (there.tcp([4001, 443], "R"), "of no connection"),
        (there.tcp([4001, 443], "SA"), "of no connection"),
        (Path::to("203.0.113.9").udp([1, 2]), "rule 203.0.113.0/24"),
        (Path::to("169.254.169.254").tcp([1, 80], "S"), "link-local"),
    ];
    assert_eq!(out(&mut filter, &opening), Outcome::Pass);
    for (frame, cause) in &kinds {
        for _ in 0..10_000 {
            let found = stopped(&out(&mut filter, frame)).0;
            assert!(found.contains(cause), "{cause}: {found}");
        }
        assert_eq!((filter.connections(), filter.held()), (1, 0), "{cause}");
    }
    assert_eq!(into(&mut filter, &there.back().tcp([443, 4000], "SA")), Outcome::Pass);
}
