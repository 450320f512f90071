//! Networks of the kernel, in a network namespace of the test's thread that stands for the host's. They need
//! root, /dev/net/tun, and the kernel's packet filter.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::time::Instant;

use super::*;
use crate::testing::{limited, running, skip_test, wait_until};

fn settings() -> NatSettings {
    let v4 = Ipv4Addr::new(10, 118, 111, 2);
    let v6 = Ipv6Addr::new(0xfd76, 0x6f6c, 0x7400, 0, 0, 0, 0, 2);
    NatSettings { mac: [2, 0, 0, 0, 0, 1], addresses: vec![(v4.into(), 24), (v6.into(), 64)], mtu: 1500 }
}

/// Runs `test` in a network namespace of its own, which forwards, if this host allows it.
fn isolated(test: impl FnOnce() + Send + 'static) {
    let name = running();
    let body = move || {
        // SAFETY: only this thread, and those that it starts, move to a new network namespace.
        let alone = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
        let lacks = !alone || fs::metadata(DRIVER).is_err() || Command::new("ip").arg("-V").output().is_err();
        if lacks || probe().is_err() {
            return skip_test(&name, "needs root, /dev/net/tun, iproute2, and nf_tables in the kernel");
        }
        write_setting(FORWARD_V4).unwrap();
        test();
    };
    let isolated = thread::Builder::new().name("isolated".into()).spawn(body).unwrap();
    limited("the test in its network ends", || isolated.join()).unwrap();
}

fn output(program: &str, arguments: &str) -> String {
    let done = Command::new(program).args(arguments.split(' ')).output().unwrap();
    assert!(done.status.success(), "{program} {arguments}: {done:?}");
    String::from_utf8(done.stdout).unwrap()
}

/// Cables whose ends are in this namespace.
fn cables() -> usize {
    output("ip", "-o link show type veth").lines().count()
}

#[test]
fn network_ends_with_its_descriptor_and_the_table_of_the_host_stays() {
    isolated(|| {
        let link = make(&settings()).unwrap();
        assert!(!link.has_v6, "no route leads there");
        assert_eq!(cables(), 1);
        drop(link);
        wait_until("the cable is gone", || cables() == 0);
        // The table exists, and another network uses it.
        let again = make(&settings()).unwrap();
        assert_eq!(cables(), 1);
        drop(again);
    });
}

#[test]
fn network_of_a_killed_process_ends() {
    isolated(|| {
        let link = make(&settings()).unwrap();
        // The command has a descriptor of its own, which ends with it.
        let mut process = Command::new("sleep").arg("1000").stdin(link.tap).spawn().unwrap();
        thread::sleep(std::time::Duration::from_millis(200));
        assert_eq!(cables(), 1, "the process has the tap");
        process.kill().unwrap();
        process.wait().unwrap();
        wait_until("the cable is gone", || cables() == 0);
    });
}

#[test]
fn network_of_short_packets_is_one_of_ipv4() {
    isolated(|| {
        let link = make(&NatSettings { mtu: IPV6_MIN_MTU as u16 - 1, ..settings() }).unwrap();
        assert!(!link.has_v6);
        assert_eq!((cables(), output("ip", "-6 -o addr show scope global").as_str()), (1, ""));
    });
}

#[test]
fn networks_at_once_have_different_addresses() {
    isolated(|| {
        const COUNT: usize = 20;
        let start = Instant::now();
        let links: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..COUNT).map(|_| scope.spawn(|| make(&settings()).unwrap())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        println!("{COUNT} networks in {:?}", start.elapsed());
        let shown = output("ip", "-4 -o addr show");
        let addresses: std::collections::BTreeSet<_> =
            shown.lines().filter_map(|line| line.split_whitespace().nth(3)).collect();
        assert_eq!(addresses.iter().filter(|address| address.starts_with("10.119.")).count(), COUNT);
        drop(links);
        wait_until("the cables are gone", || cables() == 0);
    });
}

#[test]
fn table_of_the_host_lets_nothing_in_but_answers() {
    isolated(|| {
        output("ip", "link set lo up");
        write_setting(FORWARD_V6).unwrap();
        output("ip", "link add way type veth peer name beyond");
        output("ip", "link set way up");
        output("ip", "link set beyond up");
        output("ip", "-6 addr add 2001:db8::1/64 dev way nodad");
        output("ip", "-6 route add default via 2001:db8::fe dev way");
        assert!(make(&settings()).unwrap().has_v6);
        if Command::new("nft").arg("-v").output().is_err() {
            return println!("no nft here, which would show the table");
        }
        let shown = output("nft", "list table inet volt-nat");
        for rule in [
            "type nat hook postrouting priority srcnat; policy accept;",
            "ip saddr 10.119.0.0/16 oifname != \"voltnat*\" masquerade",
            "ip6 saddr fd76:6f6c:7401::/64 oifname != \"voltnat*\" masquerade",
            "type filter hook forward priority filter; policy accept;",
            "oifname \"voltnat*\" ct state established,related accept",
            "oifname \"voltnat*\" drop",
        ] {
            assert!(shown.contains(rule), "{rule}: {shown}");
        }
    });
}

#[test]
fn host_that_does_not_forward_is_told_how_and_stays_so() {
    isolated(|| {
        fs::write(FORWARD_V4, "0").unwrap();
        let error = make(&settings()).unwrap_err().to_string();
        assert!(error.contains("sysctl -w net.ipv4.ip_forward=1"), "{error}");
        assert_eq!((fs::read_to_string(FORWARD_V4).unwrap().as_str(), cables()), ("0\n", 0));
    });
}

#[test]
fn process_without_rights_is_told_which_it_lacks() {
    isolated(|| {
        let unprivileged = thread::spawn(|| {
            // SAFETY: the bare call, unlike libc's function, changes this thread's credentials only.
            let dropped = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
            assert_eq!(dropped, 0);
            make(&settings()).unwrap_err().to_string()
        });
        let error = unprivileged.join().unwrap();
        for words in
            ["cannot make the table inet volt-nat: ", "CAP_NET_ADMIN and CAP_SYS_ADMIN", "--net user"]
        {
            assert!(error.contains(words), "{error}");
        }
        assert_eq!(cables(), 0);
    });
}

#[test]
fn default_routes_are_told_from_those_that_refuse() {
    let zero = "0".repeat(32);
    let line = |prefix: &str, interface: &str| {
        format!("{zero} {prefix} {zero} 00 {zero} ffffffff 00000001 00000000 00200200 {interface}\n")
    };
    assert!(!has_default_route(""));
    assert!(!has_default_route(&line("00", "lo")));
    assert!(!has_default_route(&line("40", "eth0")));
    assert!(has_default_route(&(line("00", "lo") + &line("00", "eth0"))));
}

#[test]
#[ignore = "a measurement"]
fn five_hundred_networks() {
    isolated(|| {
        let mut links = Vec::new();
        let start = Instant::now();
        let mut times: Vec<_> = (0..500)
            .map(|_| {
                let start = Instant::now();
                links.push(make(&settings()).unwrap());
                start.elapsed()
            })
            .collect();
        let total = start.elapsed();
        times.sort_unstable();
        println!("one after another: {total:?}, median {:?}, longest {:?}", times[250], times[499]);
        let start = Instant::now();
        drop(links);
        wait_until("the cables are gone", || cables() == 0);
        println!("all gone after {:?}", start.elapsed());
        let start = Instant::now();
        let links: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..500).map(|_| scope.spawn(|| make(&settings()).unwrap())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        println!("at once: {:?}", start.elapsed());
        assert_eq!(cables(), 500);
        let start = Instant::now();
        drop(links);
        wait_until("the cables are gone", || cables() == 0);
        println!("all gone after {:?}", start.elapsed());
    });
}
