//! Verdicts on addresses, names and connections.

use super::*;
use crate::rule::Protocol::{Icmp, Tcp, Udp};

const HOST: &str = "198.51.100.7";

fn judge(text: &str) -> Judge {
    Judge::new(&serde_json::from_str(text).unwrap(), [HOST.parse::<IpAddr>().unwrap().into()]).unwrap()
}

fn reason(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Allow(reason) => format!("allow: {reason}"),
        Verdict::Deny(reason) => format!("deny: {reason}"),
    }
}

fn address(judge: &Judge, protocol: Protocol, address: &str, port: u16) -> String {
    reason(&judge.address(protocol, address.parse().unwrap(), port))
}

fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

#[test]
fn open_judge_allows_every_address_and_name() {
    let judge = Judge::open();
    for target in ["192.0.2.1", "127.0.0.1", "169.254.169.254", "10.1.2.3", "fd00::1", "::1"] {
        assert_eq!(address(&judge, Tcp, target, 443), "allow: no rule", "{target}");
        assert!(!judge.is_closed(target.parse().unwrap()), "{target}");
    }
    assert!(judge.question(&name("example.org")).is_allow());
}

#[test]
fn without_rules_the_internet_is_open_and_the_surroundings_are_closed() {
    let judge = judge("{}");
    for (target, verdict) in [
        ("192.0.2.1", "allow: no rule"),
        ("2001:db8::1", "allow: no rule"),
        (HOST, "deny: address of the host"),
        ("::ffff:198.51.100.7", "deny: address of the host"),
        ("127.0.0.1", "deny: loopback address"),
        ("169.254.169.254", "deny: link-local address"),
        ("10.1.2.3", "deny: private address"),
        ("fd00::1", "deny: private address"),
    ] {
        assert_eq!(address(&judge, Tcp, target, 443), verdict, "{target}");
    }
}

#[test]
fn ipv6_that_leads_to_ipv4_passes_if_both_addresses_do() {
    let both = r#"{"default":"deny","allow":["64:ff9b::/96","192.0.2.1"]}"#;
    for (policy, target, verdict) in [
        ("{}", "64:ff9b::c000:201", "allow: no rule"),
        (r#"{"deny":["::/0"]}"#, "64:ff9b::c000:201", "deny: rule ::/0"),
        (r#"{"deny":["192.0.2.0/24"]}"#, "2002:c000:201::1", "deny: rule 192.0.2.0/24"),
        (r#"{"default":"deny","allow":["0.0.0.0/0"]}"#, "2002:c000:201::1", "deny: no rule"),
        (both, "64:ff9b::c000:201", "allow: rule 192.0.2.1"),
        (both, "64:ff9b::c000:202", "deny: no rule"),
    ] {
        assert_eq!(address(&judge(policy), Tcp, target, 443), verdict, "{policy} {target}");
    }
}

#[test]
fn allow_goes_before_deny() {
    let judge = judge(
        r#"{"default":"deny","allow":["192.0.2.0/24:443","icmp:*"],
            "deny":["192.0.2.1","203.0.113.0/24"]}"#,
    );
    for (protocol, target, port, verdict) in [
        (Tcp, "192.0.2.1", 443, "allow: rule 192.0.2.0/24:443"),
        (Udp, "192.0.2.1", 443, "allow: rule 192.0.2.0/24:443"),
        (Tcp, "192.0.2.1", 80, "deny: rule 192.0.2.1"),
        (Tcp, "192.0.2.2", 80, "deny: no rule"),
        (Icmp, "203.0.113.1", 0, "allow: rule icmp:*"),
        (Tcp, "203.0.113.1", 443, "deny: rule 203.0.113.0/24"),
    ] {
        assert_eq!(address(&judge, protocol, target, port), verdict, "{protocol:?} {target} {port}");
    }
}

#[test]
fn only_a_network_within_a_closed_range_opens_it() {
    let judge = judge(
        r#"{"allow":["*","0.0.0.0/0","8.0.0.0/6","10.1.0.0/16","198.51.100.0/24","169.254.169.254:80"]}"#,
    );
    for (target, port, verdict) in [
        ("10.1.2.3", 443, "allow: rule 10.1.0.0/16"),
        ("10.2.0.1", 443, "deny: private address"),
        ("::ffff:10.1.2.3", 443, "allow: rule 10.1.0.0/16"),
        ("169.254.169.254", 80, "allow: rule 169.254.169.254:80"),
        ("169.254.169.254", 81, "deny: link-local address"),
        // The network of the host is larger than the host.
        (HOST, 22, "deny: address of the host"),
        ("198.51.100.8", 22, "allow: rule 198.51.100.0/24"),
        ("127.0.0.1", 443, "deny: loopback address"),
    ] {
        assert_eq!(address(&judge, Tcp, target, port), verdict, "{target} {port}");
    }
}

#[test]
fn private_network_of_the_host_does_not_open_the_host() {
    let policy = serde_json::from_str(r#"{"allow":["10.1.0.0/16","fd00::/8"]}"#).unwrap();
    let host = ["10.1.0.5", "fd00::5", "fe80::5"].map(|address| address.parse::<IpAddr>().unwrap());
    let judge = Judge::new(&policy, host.map(IpNet::from)).unwrap();
    for (target, verdict) in [
        ("10.1.0.5", "deny: address of the host"),
        ("10.1.0.6", "allow: rule 10.1.0.0/16"),
        ("fd00::5", "deny: address of the host"),
        ("fd00::6", "allow: rule fd00::/8"),
    ] {
        assert_eq!(address(&judge, Tcp, target, 22), verdict, "{target}");
    }
    assert!(host.into_iter().all(|address| judge.is_foreign(address)));
    assert!(!judge.is_foreign("10.1.0.6".parse().unwrap()));
}

#[test]
fn names_are_allowed_by_the_narrowest_rule() {
    let judge = judge(
        r#"{"default":"deny","allow":["example.org:443","*.example.org:443","api.test"],
            "deny":["bad.example.org","*.api.test"]}"#,
    );
    for (host, port, verdict) in [
        ("example.org", 443, "allow: rule example.org:443"),
        ("example.org", 80, "deny: no rule"),
        ("www.example.org", 443, "allow: rule *.example.org:443"),
        ("bad.example.org", 443, "allow: rule *.example.org:443"),
        ("bad.example.org", 80, "deny: rule bad.example.org"),
        ("api.test", 1, "allow: rule api.test"),
        ("x.api.test", 1, "deny: rule *.api.test"),
        ("example.com", 443, "deny: no rule"),
    ] {
        assert_eq!(reason(&judge.name(Tcp, &name(host), port)), verdict, "{host}:{port}");
    }
}

#[test]
fn pattern_is_about_one_name_or_those_below() {
    for (pattern, asked, is_allowed) in [
        ("example.org", "example.org", true),
        ("example.org", "www.example.org", false),
        ("example.org", "badexample.org", false),
        ("*.example.org", "www.example.org", true),
        ("*.example.org", "a.b.example.org", true),
        ("*.example.org", "example.org", false),
        ("*.example.org", "www.badexample.org", false),
        ("*.Example.org.", "x.EXAMPLE.org.", true),
        ("*.org", "example.org", true),
    ] {
        let judge = judge(&format!(r#"{{"default":"deny","allow":["{pattern}"]}}"#));
        assert_eq!(judge.name(Tcp, &name(asked), 443).is_allow(), is_allowed, "{pattern} {asked}");
    }
}

#[test]
fn question_is_allowed_if_any_port_is() {
    for (policy, host, is_allowed) in [
        ("{}", "example.org", true),
        (r#"{"default":"deny"}"#, "example.org", false),
        (r#"{"default":"deny","allow":["example.org:443"]}"#, "example.org", true),
        (r#"{"default":"deny","allow":["example.org:443"]}"#, "www.example.org", false),
        (r#"{"default":"deny","allow":["10.0.0.0/8"]}"#, "example.org", false),
        (r#"{"default":"deny","allow":["*:443"]}"#, "example.org", true),
        (r#"{"default":"deny","allow":["0.0.0.0/0"]}"#, "example.org", true),
        (r#"{"deny":["example.org"]}"#, "example.org", false),
        (r#"{"deny":["example.org:25"]}"#, "example.org", true),
        (r#"{"deny":["udp:example.org"]}"#, "example.org", true),
        (r#"{"deny":["*"],"allow":["*.org"]}"#, "example.org", true),
    ] {
        assert_eq!(judge(policy).question(&name(host)).is_allow(), is_allowed, "{policy} {host}");
    }
}

#[test]
fn connection_to_an_address_of_a_name_is_judged_by_the_name() {
    let by_name = r#"{"deny":["0.0.0.0/0","::/0"],"allow":["example.org:443,5432","192.0.2.9"]}"#;
    let denied_name = r#"{"deny":["ads.test","old.test:22"]}"#;
    let opened = r#"{"default":"deny","allow":["example.org","10.1.0.0/16"]}"#;
    let of_v4 = r#"{"default":"deny","allow":["0.0.0.0/0:22","example.org:5432"]}"#;
    let port = r#"{"default":"deny","allow":["tcp:10.1.2.3:5432","*.cdn.test"]}"#;
    let example = &["example.org"][..];
    let closed = |reason: &str| format!("closed: {reason}");
    for (policy, protocol, target, port, names, expected) in [
        (by_name, Tcp, "192.0.2.1", 443, example, "named".to_owned()),
        (by_name, Tcp, "192.0.2.1", 5432, example, "open".to_owned()),
        (by_name, Tcp, "192.0.2.1", 80, example, closed("rule 0.0.0.0/0")),
        (by_name, Tcp, "192.0.2.1", 443, &[], closed("rule 0.0.0.0/0")),
        (by_name, Tcp, "192.0.2.9", 22, example, "open".to_owned()),
        (by_name, Tcp, "192.0.2.1", 443, &["a.test", "example.org"], "named".to_owned()),
        (by_name, Udp, "192.0.2.1", 443, example, closed("it hides the name, and rules are about names")),
        (opened, Tcp, "192.0.2.1", 853, example, closed("it hides the name, and rules are about names")),
        (opened, Udp, "192.0.2.1", 853, example, closed("it hides the name, and rules are about names")),
        (opened, Udp, "192.0.2.1", 123, example, "open".to_owned()),
        (opened, Icmp, "192.0.2.1", 0, example, "open".to_owned()),
        (opened, Icmp, "192.0.2.1", 0, &[], closed("no rule")),
        // Each connection tells which of its address's names it means, on the ports where it can.
        (denied_name, Tcp, "192.0.2.1", 443, &[], "named".to_owned()),
        (denied_name, Tcp, "192.0.2.1", 80, example, "named".to_owned()),
        (denied_name, Tcp, "192.0.2.1", 22, &["old.test"], closed("rule old.test:22")),
        (denied_name, Tcp, "192.0.2.1", 23, &["old.test"], "open".to_owned()),
        (denied_name, Udp, "192.0.2.1", 443, &[], closed("it hides the name, and rules are about names")),
        ("{}", Udp, "192.0.2.1", 443, &[], "open".to_owned()),
        ("{}", Tcp, "192.0.2.1", 443, &[], "open".to_owned()),
        // All of one version of IP is not the other one.
        (of_v4, Tcp, "2001:db8::1", 22, &["other.test"], closed("no rule")),
        (of_v4, Tcp, "2001:db8::1", 443, &["other.test"], closed("no rule")),
        (of_v4, Tcp, "192.0.2.1", 22, &["other.test"], "open".to_owned()),
        // A name that leads into a closed range opens nothing, nor other ports of what a network opens.
        (port, Tcp, "10.1.2.3", 443, &["x.cdn.test"], closed("private address")),
        (port, Tcp, "10.1.2.3", 5432, &["x.cdn.test"], "open".to_owned()),
        (by_name, Tcp, "127.0.0.1", 443, example, closed("rule 0.0.0.0/0")),
        (opened, Tcp, "10.2.0.1", 443, example, closed("private address")),
        (opened, Tcp, "10.1.0.1", 443, example, "open".to_owned()),
        (opened, Tcp, HOST, 443, example, closed("address of the host")),
    ] {
        let names: Vec<_> = names.iter().map(|text| name(text)).collect();
        let found = match judge(policy).gate(protocol, (target.parse().unwrap(), port), &names) {
            Gate::Open => "open".to_owned(),
            Gate::Named => "named".to_owned(),
            Gate::Closed(reason) => closed(&reason.to_string()),
        };
        assert_eq!(found, expected, "{policy} {protocol:?} {target}:{port} {names:?}");
    }
}

#[test]
fn connection_is_judged_by_the_name_that_it_begins_with() {
    let by_name = r#"{"deny":["192.0.2.0/24"],"allow":["*.example.org:443"]}"#;
    let only = r#"{"default":"deny","allow":["*.example.org:443"]}"#;
    let denied = r#"{"deny":["*.ads.test"]}"#;
    for (policy, target, host, verdict) in [
        (only, "203.0.113.1", Some("a.example.org"), "allow: rule *.example.org:443"),
        (only, "203.0.113.1", Some("example.org"), "deny: no rule"),
        (only, "203.0.113.1", None, "deny: no rule"),
        (by_name, "192.0.2.1", Some("a.example.org"), "allow: rule *.example.org:443"),
        (by_name, "192.0.2.1", Some("other.test"), "deny: rule 192.0.2.0/24"),
        (by_name, "192.0.2.1", None, "deny: rule 192.0.2.0/24"),
        (denied, "203.0.113.1", Some("x.ads.test"), "deny: rule *.ads.test"),
        (denied, "203.0.113.1", Some("other.test"), "allow: no rule"),
        (denied, "203.0.113.1", None, "allow: no rule"),
    ] {
        let host = host.map(name);
        let found = judge(policy).named((target.parse().unwrap(), 443), host.as_ref());
        assert_eq!(reason(&found), verdict, "{policy} {target} {host:?}");
    }
}

#[test]
fn network_of_all_addresses_is_about_all_names() {
    let ipv4_alone = r#"{"deny":["::/0"]}"#;
    let all_but = r#"{"deny":["0.0.0.0/0"],"allow":["example.org"]}"#;
    for (policy, host, verdict) in [
        (ipv4_alone, "example.org", "allow: no rule"),
        (all_but, "example.org", "allow: rule example.org"),
        (all_but, "other.test", "deny: rule 0.0.0.0/0"),
        (r#"{"default":"deny","allow":["::/0"]}"#, "other.test", "allow: rule ::/0"),
        (r#"{"default":"deny","allow":["udp:*:53"]}"#, "other.test", "allow: rule udp:*:53"),
        (r#"{"default":"deny","allow":["10.0.0.0/8"]}"#, "other.test", "deny: no rule"),
    ] {
        assert_eq!(reason(&judge(policy).question(&name(host))), verdict, "{policy} {host}");
    }
}

#[test]
fn ten_thousand_rules_are_looked_up_and_not_read_through() {
    let nets =
        (0..5_000_u32).map(|number| format!("198.{}.{}.0/24:443", 18 + number / 250 % 2, number % 250));
    let names = (0..4_999).map(|number| format!("*.a{number}.example:443"));
    let allow: std::collections::BTreeSet<_> = nets.chain(names).collect();
    let allow = allow.iter().map(|rule| rule.parse().unwrap()).collect();
    let policy = Policy { default: Action::Deny, allow, ..Policy::default() };
    let judge = Judge::new(&policy, []).unwrap();
    assert_eq!(address(&judge, Tcp, "198.18.7.9", 443), "allow: rule 198.18.7.0/24:443");
    assert!(judge.name(Tcp, &name("x.a4998.example"), 443).is_allow());
    assert!(!judge.name(Tcp, &name("x.a5000.example"), 443).is_allow());
}
