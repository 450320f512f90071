//! Versions of IP that the host does not route.

use super::tests::*;
use super::*;
use crate::host::HostNetwork;

#[test]
fn version_of_ip_that_the_host_does_not_route_is_rejected_at_once() {
    let silent = r#"{"denial":"drop"}"#;
    let mut filter = filter(silent);
    let judge =
        filter.judge().with_host(&HostNetwork { addresses: vec![], routes_v4: true, routes_v6: false });
    filter.change(Arc::new(judge), Instant::now());
    assert_eq!(out(&mut filter, &Path::to(FAR).tcp([5000, 443], "S")), Outcome::Pass);
    for frame in [Path::to(FAR6).tcp([5000, 443], "S"), Path::to(FAR6).udp([5000, 123])] {
        let (why, is_answered) = stopped(&out(&mut filter, &frame));
        assert_eq!((why.contains("no default route"), is_answered), (true, true), "{why}");
    }
}

#[test]
fn neighbours_are_found_for_a_version_of_ip_that_the_host_does_not_route() {
    let gateway = octets("fd76:6f6c:7400::2");
    let asks_v6 =
        Path::between(OWN6, "ff02::1:ff00:2").near().icmp(135, &[&gateway[..], &option(1, US)].concat());
    let probe_v6 = Path::between("::", "ff02::1:ff00:2").near().icmp(135, &gateway);
    let asks_v4 = arp(US, OWN);
    for (routes_v4, routes_v6) in [(true, true), (true, false), (false, true)] {
        let mut filter = filter("{}");
        let network = HostNetwork { addresses: vec![], routes_v4, routes_v6 };
        filter.change(Arc::new(filter.judge().with_host(&network)), Instant::now());
        assert_eq!(out(&mut filter, &probe_v6), Outcome::Pass);
        assert_eq!(out(&mut filter, &arp(US, "0.0.0.0")), Outcome::Pass);
        for (frame, is_routed) in [(&asks_v4, routes_v4), (&asks_v6, routes_v6)] {
            let outcome = out(&mut filter, frame);
            assert_eq!(outcome == Outcome::Pass, is_routed, "{outcome:?}");
            let Outcome::Answer(answer) = outcome else { continue };
            assert_eq!((&answer[..6], &answer[6..12]), (&US[..], &crate::ROUTER[..]));
            let answer = Frame::parse(&answer, answer.len()).unwrap();
            match answer.content {
                Content::Arp(crate::Arp { sender, sender_mac, .. }) => {
                    assert_eq!((sender.octets(), sender_mac), ([10, 118, 111, 2], crate::ROUTER));
                }
                Content::Packet(Packet { source, target, hop_limit, .. }) => {
                    assert_eq!((source, target, hop_limit), (gateway.into(), address(OWN6), 255));
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
