//! The network of VMs that run an image, by passt and by none.

use std::fs;
use std::io::{self, Read};
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{Scope, scope};

use rustix::process::{Pid, Signal, kill_process};
use volt_image::digest;
use volt_tests::namespace::Namespace;
use volt_tests::streams::{Limited, await_ready};
use volt_tests::{Network, Outcome, needs, wait_until};

use super::layers::large;
use super::runs::{IMAGE, Images};

/// The address that [`Resolver`] gives for all names.
const ANSWER: [u8; 4] = [192, 0, 2, 77];

/// The host's resolver, at its port and an address of the network.
pub(super) struct Resolver {
    socket: UdpSocket,
    questions: AtomicUsize,
}

impl Resolver {
    const ADDRESS: &str = "203.0.113.1:53";

    pub(super) fn new(network: &Network) -> Self {
        let socket = network.inside(|| UdpSocket::bind(Self::ADDRESS)).unwrap();
        Self { socket, questions: AtomicUsize::new(0) }
    }

    /// Answers questions for addresses of IPv4 until [`Self::end`].
    pub(super) fn serve<'a>(&'a self, scope: &'a Scope<'a, '_>) -> Ends<'a> {
        scope.spawn(|| {
            let mut question = [0; 512];
            while let Ok((len @ 12.., from)) = self.socket.recv_from(&mut question) {
                self.questions.fetch_add(1, Ordering::SeqCst);
                // An answer, with the question and one record of its name, or none. EDNS behind the question
                // stays out.
                let mut end = 12;
                while question[end] != 0 {
                    end += 1 + usize::from(question[end]);
                }
                let len = len.min(end + 5);
                let is_of_ipv4 = question[..len].ends_with(&[0, 1, 0, 1]);
                let head = [&question[..2], &[0x81, 0x80, 0, 1, 0, is_of_ipv4.into(), 0, 0, 0, 0]].concat();
                let record = [&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4], &ANSWER[..]].concat();
                let record = if is_of_ipv4 { &record[..] } else { &[] };
                self.socket.send_to(&[&head, &question[12..len], record].concat(), from).unwrap();
            }
        });
        Ends(self)
    }

    pub(super) fn questions(&self) -> usize {
        self.questions.load(Ordering::SeqCst)
    }
}

/// Ends the thread of a resolver on drop, also when the test fails.
pub(super) struct Ends<'a>(&'a Resolver);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.socket.send_to(&[], Resolver::ADDRESS).unwrap();
    }
}

/// Images, and a network in which VMs and passt run.
pub(super) struct Net {
    pub(super) images: Images,
    pub(super) network: Network,
}

impl Net {
    /// Makes a network whose host asks [`Resolver::ADDRESS`] for names.
    pub(super) fn new() -> Self {
        let images = Images::new();
        let etc = images.names.scratch().path("etc");
        fs::create_dir(&etc).unwrap();
        // passt looks for the user nobody.
        for file in ["passwd", "group"] {
            fs::copy(Path::new("/etc").join(file), etc.join(file)).unwrap();
        }
        fs::write(etc.join("resolv.conf"), "nameserver 203.0.113.1\n").unwrap();
        Self { images, network: Network::with_a_way_out() }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.images.command(words);
        self.network.namespace().apply(&mut command);
        let etc = self.images.names.scratch().path("etc");
        Namespace::replaced(Path::new("/etc"), &etc).apply(&mut command);
        command
    }

    pub(super) fn run(&self, words: &[&str]) -> Outcome {
        Outcome::of_command(&mut self.command(words))
    }

    /// The processes of passt here.
    pub(super) fn passts(&self) -> Vec<Pid> {
        let own = self.network.inside(|| fs::read_link("/proc/thread-self/ns/net")).unwrap();
        let is_here = |process: &Path| {
            let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
            name.starts_with("passt") && fs::read_link(process.join("ns/net")).is_ok_and(|found| found == own)
        };
        let processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
        let here = processes.filter(|process| is_here(process));
        here.filter_map(|process| Pid::from_raw(process.file_name()?.to_str()?.parse().ok()?)).collect()
    }

    /// Runs a script as the main process of a new VM, with options.
    pub(super) fn script(&self, options: &[&str], script: &str) -> Outcome {
        self.run(&[&["run", "--rm"], options, &[IMAGE, "sh", "-c", script]].concat())
    }
}

/// Sends back a stream for each of `lengths`, and ends it after so many bytes.
pub(super) fn echo<'a>(scope: &'a Scope<'a, '_>, network: &Network, address: &str, lengths: &'static [u64]) {
    let listener = network.listen(address);
    scope.spawn(move || {
        for length in lengths {
            await_ready("the guest connects", &listener);
            let stream = listener.accept().unwrap().0;
            stream.limit().unwrap();
            assert_eq!(io::copy(&mut (&stream).take(*length), &mut &stream).unwrap(), *length);
        }
    });
}

/// `send ADDRESS` sends standard input, and prints what comes back until the other end closes. It leaves the
/// stream open: passt of 2023 may keep the other end's FIN from a guest that has ended its own half.
pub(super) const SEND: &str = "busybox mkfifo /sent
    send() { exec 9<&0; { cat <&9; exec sleep 1000; } >/sent 2>/dev/null & nc $1 90 </sent; }";

/// Prints the addresses, routes and resolvers, and `configured` if the network was complete at once.
pub(super) const SHOW: &str = "ip=busybox\\ ip
    $ip -4 -o addr show dev eth0 | busybox awk '{print $4}'
    $ip -6 -o addr show dev eth0 scope global | busybox awk '{print $4, $NF, /tentative/}'
    $ip route show default; $ip -6 route show default
    cat /etc/resolv.conf /sys/class/net/eth0/mtu";

#[test]
fn vm_with_passt_reaches_hosts_and_resolves_names() {
    needs!(kvm, linux, agent, network);
    let net = Net::new();
    let resolver = Resolver::new(&net.network);
    // DHCP and static addresses agree.
    let script = format!(
        "{SEND}; {SHOW}
        send 203.0.113.1 </large | sha256sum
        echo six | send 2001:db8:1::1
        busybox nslookup -type=a name.test
        printf '#!/bin/sh\\n[ $1 != bound ] || echo dhcp $ip/$mask $router\\n' >/dhcp; chmod +x /dhcp
        busybox udhcpc -i eth0 -n -q -f -s /dhcp 2>&1"
    );
    let outcome = scope(|scope| {
        let _ends = resolver.serve(scope);
        echo(scope, &net.network, "[2001:db8:1::1]:90", &[4]);
        echo(scope, &net.network, "203.0.113.1:90", &[5 << 20]);
        // The network of images where none is chosen.
        net.script(&["--no-policy"], &script)
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
        "65520",
        &sum,
        "six",
        "Address:\t10.118.111.3:53",
        "Address: 192.0.2.77",
        "dhcp 10.118.111.15/24 10.118.111.2",
    ];
    let mut lines = outcome.stdout.lines();
    for line in expected {
        assert!(lines.any(|found| found == line), "{line:?} is missing or late: {outcome:?}");
    }
    net.images.are_empty();
}

#[test]
fn vms_at_once_have_equal_addresses_and_a_snapshot_goes_on_with_them() {
    needs!(kvm, linux, agent, network);
    let net = Net::new();
    let resolver = Resolver::new(&net.network);
    // The file lets it begin.
    let script = "while [ ! -e /go ]; do sleep 0.1; done
        while :; do busybox nslookup -type=a name.test; sleep 0.1; done";
    for name in ["web", "other"] {
        let options = ["run", "-d", "--name", name, "--net", "user", "--no-policy", "--upper", "memory"];
        net.run(&[&options[..], &[IMAGE, "sh", "-c", script]].concat()).succeeded();
    }
    scope(|scope| {
        let _ends = resolver.serve(scope);
        echo(scope, &net.network, "203.0.113.1:90", &[4, 6]);
        for name in ["web", "other"] {
            let script = format!("{SEND}; {SHOW}; echo {name} | send 203.0.113.1");
            let outcome = net.run(&["exec", name, "sh", "-c", &script]);
            let lines: Vec<_> = outcome.succeeded().stdout.lines().collect();
            assert_eq!((lines[0], *lines.last().unwrap()), ("10.118.111.15/24", name), "{outcome:?}");
        }
        assert_eq!(resolver.questions(), 0);
        net.run(&["exec", "web", "sh", "-c", ": >/go"]).succeeded();
        wait_until("the VM asks for a name", || resolver.questions() > 0);
        net.images.names.ok("snapshot create web warm");
        net.images.names.ok("kill web");
        let before = resolver.questions();
        net.run(&["restore", "-d", "--name", "clone", "warm"]).succeeded();
        wait_until("the restored VM asks for a name", || resolver.questions() > before + 1);
    });
}

#[test]
fn vm_without_a_network_has_only_localhost() {
    needs!(kvm, linux, agent, network);
    let net = Net::new();
    let script =
        "ls /sys/class/net; cat /sys/class/net/lo/flags; [ -e /etc/resolv.conf ] || echo no resolver";
    let outcome = net.script(&["--net", "none"], script);
    assert_eq!(outcome.succeeded().stdout, "lo\n0x9\nno resolver\n");
    let outcome = net.script(&["--net", "none", "--net", "user"], "true");
    outcome.refused(&["none stands alone"]);
}

#[test]
fn host_without_routes_or_passt_is_no_obstacle_and_told() {
    needs!(kvm, linux, agent, network);
    let net = Net { network: Network::new(), ..Net::new() };
    let script = "cat /sys/class/net/eth0/mtu";
    let outcome = net.script(&[], script);
    assert_eq!((&*outcome.succeeded().stdout, &*outcome.stderr), ("65520\n", ""));
    let outcome = net.script(&["--log-level", "info"], &format!("{script}; sleep 2"));
    assert!(outcome.succeeded().stderr.contains("this host has no default route"), "{outcome:?}");
    let mut command = net.command(&["run", "--rm", IMAGE, "true"]);
    command.env("PATH", net.images.names.scratch().path("etc"));
    Outcome::of_command(&mut command)
        .refused(&["install it (Debian's package is passt)", "another network (--net)"]);
    net.images.are_empty();
}

#[test]
fn host_with_one_version_of_ip_has_guests_with_it_and_rejects_the_other() {
    needs!(kvm, linux, agent, network);
    for (lost, server, word, other) in [
        ("-6 route del default", "203.0.113.1", "one", "2001:db8:1::1"),
        ("-4 route del default", "2001:db8:1::1", "six", "203.0.113.1"),
    ] {
        let net = Net::new();
        net.network.ip(lost);
        let script = format!(
            "{SEND}; echo {word} | send {server}
            busybox timeout 100 busybox nc {other} 90 </dev/null 2>&1 | grep -c refused"
        );
        let at_90 = |server: &str| SocketAddr::new(server.parse().unwrap(), 90).to_string();
        let open = net.network.listen(&at_90(other));
        let outcome = scope(|scope| {
            echo(scope, &net.network, &at_90(server), &[4]);
            net.script(&["--allow", "203.0.113.1", "--allow", "2001:db8:1::1"], &script)
        });
        assert_eq!(outcome.succeeded().stdout, format!("{word}\n1\n"), "{outcome:?}");
        open.set_nonblocking(true).unwrap();
        assert!(open.accept().is_err(), "{other} was reached");
        net.images.are_empty();
    }
}

#[test]
fn passt_that_is_killed_or_stopped_comes_back_and_connections_end() {
    needs!(kvm, linux, agent, network);
    let net = Net::new();
    let hold = format!(
        "busybox mkfifo /held; {{ exec 9<>/held; busybox nc 203.0.113.1 90 <&9; echo ended; }} & {SEND}
        while :; do sleep 1; done"
    );
    net.run(&["run", "-d", "--name", "web", "--allow", "203.0.113.1:90", IMAGE, "sh", "-c", &hold])
        .succeeded();
    let reach = |word: &str| {
        let script = format!("rm -f /sent; {SEND}; echo {word} | send 203.0.113.1");
        net.run(&["exec", "web", "sh", "-c", &script]).succeeded().stdout.clone()
    };
    let listener = net.network.listen("203.0.113.1:90");
    await_ready("the guest connects", &listener);
    let mut held = listener.accept().unwrap().0;
    drop(listener);
    let first = net.passts()[0];
    kill_process(first, Signal::KILL).unwrap();
    wait_until("the guest's connection ends", || {
        net.run(&["logs", "web"]).succeeded().stdout.contains("ended")
    });
    assert_eq!(held.read(&mut [0]).unwrap_or(0), 0, "passt's end is the far side's");
    wait_until("another passt runs", || net.passts().first().is_some_and(|found| *found != first));
    scope(|scope| {
        echo(scope, &net.network, "203.0.113.1:90", &[4, 6]);
        assert_eq!(reach("one"), "one\n");
        let second = net.passts()[0];
        kill_process(second, Signal::STOP).unwrap();
        // The guest floods its network meanwhile, and lives.
        let flood = "busybox timeout 2 busybox nc -u 203.0.113.1 90 </dev/zero; echo flooded";
        assert_eq!(net.run(&["exec", "web", "sh", "-c", flood]).succeeded().stdout, "flooded\n");
        kill_process(second, Signal::CONT).unwrap();
        assert_eq!(reach("three"), "three\n");
    });
    net.images.names.ok("kill web");
    wait_until("passt ends with its VM", || net.passts().is_empty());
}
