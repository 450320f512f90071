//! `run --net nat`: VMs that run an image, and servers beyond the host.

use std::fs;
use std::process::Command;
use std::thread::scope;

use volt_image::digest;
use volt_tests::rest::ask;
use volt_tests::{needs, wait_until};

use super::layers::large;
use super::network::{Net, Resolver, SEND, SHOW, echo};
use super::runs::IMAGE;

const FORWARD: [&str; 2] = ["/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"];
/// The server beyond the host.
const FAR: &str = "192.0.2.77";
const FAR_V6: &str = "2001:db8::fe";

impl Net {
    /// Lets the host forward packets.
    fn forward(&self) {
        let write = || FORWARD.iter().try_for_each(|path| fs::write(path, "1"));
        self.network.inside(write).expect("let the host forward");
    }

    /// The ends of cables on the host.
    fn cables(&self) -> usize {
        let table = self.network.inside(|| fs::read_to_string("/proc/thread-self/net/dev")).unwrap();
        table.lines().filter(|line| line.trim().starts_with("voltnat")).count()
    }

    /// Waits until VMs that have ended have left nothing.
    fn await_no_cables(&self) {
        wait_until("the cables of ended VMs are gone", || self.cables() == 0);
    }
}

#[test]
fn vm_with_nat_reaches_hosts_and_resolves_names_and_leaves_a_table_alone() {
    needs!(kvm, linux, agent, network, nat);
    let net = Net::new();
    net.forward();
    let (far, _cable) = net.network.beyond(&[&format!("{FAR}/24")]);
    let resolver = Resolver::new(&net.network);
    // DHCP and static addresses agree.
    let script = format!(
        "{SEND}; {SHOW}
        send {FAR} </large | sha256sum
        echo six | send {FAR_V6}
        busybox nslookup -type=a name.test
        printf '#!/bin/sh\\n[ $1 != bound ] || echo dhcp $ip/$mask $router $dns $mtu\\n' >/dhcp
        chmod +x /dhcp
        busybox udhcpc -i eth0 -n -q -f -O mtu -s /dhcp 2>&1"
    );
    let outcome = scope(|scope| {
        let _ends = resolver.serve(scope);
        echo(scope, &far, &format!("[{FAR_V6}]:90"), &[4]);
        echo(scope, &far, &format!("{FAR}:90"), &[5 << 20]);
        net.script(&["--net", "nat", "--confine", "strict"], &script)
    });
    outcome.succeeded();
    let sum = format!("{}  -", digest::of(&large()).digest());
    let expected = [
        "10.118.111.15/24",
        "fd76:6f6c:7400::15/64 forever 0",
        "default via 10.118.111.2 dev eth0 ",
        "default via fd76:6f6c:7400::2 dev eth0  metric 1024 ",
        "nameserver 10.118.111.3",
        "nameserver fd76:6f6c:7400::3",
        "1500",
        &sum,
        "six",
        "Address:\t10.118.111.3:53",
        "Address: 192.0.2.77",
        "dhcp 10.118.111.15/24 10.118.111.2 10.118.111.3 1500",
    ];
    let mut lines = outcome.stdout.lines();
    for line in expected {
        assert!(lines.any(|found| found == line), "{line:?} is missing or late: {outcome:?}");
    }
    net.await_no_cables();
    if Command::new("nft").arg("-v").output().is_ok() {
        let list = || Command::new("nft").args(["list", "tables"]).output().unwrap().stdout;
        assert_eq!(String::from_utf8_lossy(&net.network.inside(list)), "table inet volt-nat\n");
    }
    net.images.are_empty();
}

#[test]
fn clones_have_networks_of_their_own_that_end_with_killed_processes() {
    needs!(kvm, linux, agent, network, nat);
    let net = Net::new();
    net.forward();
    let (far, _cable) = net.network.beyond(&[&format!("{FAR}/24")]);
    let options = ["run", "-d", "--name", "web", "--net", "nat", "--upper", "memory"];
    net.run(&[&options[..], &[IMAGE, "sh", "-c", "while :; do sleep 1; done"]].concat()).succeeded();
    net.images.names.ok("snapshot create web warm");
    for name in ["one", "two"] {
        net.run(&["restore", "-d", "--name", name, "warm"]).succeeded();
    }
    net.run(&["fork", "web", "--name", "kid"]).succeeded();
    net.run(&["rewind", "two"]).succeeded();
    assert_eq!(net.cables(), 4);
    let names = ["one", "two", "web", "kid"];
    scope(|scope| {
        echo(scope, &far, &format!("{FAR}:90"), &[4, 4, 4, 4]);
        for name in names {
            let script = format!("{SEND}; echo {name} | send {FAR}");
            let outcome = net.run(&["exec", name, "sh", "-c", &script]);
            assert_eq!(outcome.succeeded().stdout, format!("{name}\n"), "{outcome:?}");
        }
    });
    let open = far.listen(&format!("{FAR}:90"));
    let socket = net.images.names.root().join("web/api.sock");
    assert_eq!(ask(&socket, "PUT", "/v1/vm/network", r#"{"policy":{"default":"deny"}}"#).0, 204);
    let refused = format!("busybox nc {FAR} 90 </dev/null 2>&1 | grep -c refused");
    assert_eq!(net.run(&["exec", "web", "sh", "-c", &refused]).succeeded().stdout, "1\n");
    open.set_nonblocking(true).unwrap();
    assert!(open.accept().is_err(), "the policy let a connection out");
    for name in names {
        net.images.names.ok(&format!("kill {name}"));
    }
    net.await_no_cables();
}

#[test]
fn host_that_does_not_forward_is_named_and_stays_so() {
    needs!(kvm, linux, agent, network, nat);
    let net = Net::new();
    // Strictly confined threads ask another process.
    for confinement in ["default", "strict"] {
        let outcome = net.script(&["--net", "nat", "--confine", confinement], "true");
        assert_eq!(outcome.status, 1, "{outcome:?}");
        for words in ["make the network of eth0 (nat)", "sysctl -w net.ipv4.ip_forward=1", "--net user"] {
            assert!(outcome.stderr.contains(words), "{words}: {outcome:?}");
        }
    }
    assert_eq!(net.network.inside(|| fs::read_to_string(FORWARD[0])).unwrap(), "0\n");
    assert_eq!(net.cables(), 0);
    net.images.are_empty();
}
