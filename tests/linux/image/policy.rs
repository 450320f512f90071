//! A policy of the network of VMs that run an image, behind passt.

use std::io::{Read, Write};
use std::thread::scope;

use volt_tests::needs;
use volt_tests::rest::ask;

use super::network::{Net, SEND, echo};
use super::runs::IMAGE;

/// `closed ADDRESS PORT` prints how a connection ends that takes no data: `refused`, `silent` or `open`.
const CLOSED: &str = "closed() { busybox timeout 3 busybox nc $1 $2 </dev/null >/dev/null 2>/nc
        case $? in 124|143) echo silent;; *) grep -q refused /nc && echo refused || echo open;; esac; }";

#[test]
fn guest_reaches_what_the_policy_allows_and_nothing_else() {
    needs!(kvm, linux, agent, network);
    let net = Net::new();
    let script = format!(
        "{SEND}; {CLOSED}
        echo four | send 203.0.113.1
        echo six | send 2001:db8:1::1
        closed 203.0.113.1 91; closed 192.0.2.1 90; closed 10.118.111.2 90; closed 169.254.169.254 80
        closed 2001:db8:1::1 91; closed fd76:6f6c:7400::2 90
        busybox ping -c 1 -W 2 203.0.113.1 | grep -c Unreachable || true; echo end"
    );
    let options = [
        "--net",
        "user",
        "--default-deny",
        "--allow",
        "tcp:203.0.113.1:90",
        "--allow",
        "tcp:[2001:db8:1::1]:90",
    ];
    let outcome = scope(|scope| {
        echo(scope, &net.network, "[2001:db8:1::1]:90", &[4]);
        echo(scope, &net.network, "203.0.113.1:90", &[5]);
        net.script(&options, &script)
    });
    let refused = "refused\n".repeat(6);
    assert_eq!(outcome.succeeded().stdout, format!("four\nsix\n{refused}0\nend\n"), "{outcome:?}");
    net.images.are_empty();
}

#[test]
fn surroundings_of_the_host_are_closed_and_denial_may_be_silent() {
    needs!(kvm, linux, agent, network);
    let net = Net::new();
    // 203.0.113.1 is an address of the host: the wider network does not open it.
    let script = format!("{CLOSED}; closed 203.0.113.1 90; closed 192.0.2.1 90; closed 10.9.8.7 90");
    let listener = net.network.listen("203.0.113.1:90");
    let options = ["--net", "user", "--allow", "203.0.113.0/24"];
    assert_eq!(net.script(&options, &script).succeeded().stdout, "refused\nrefused\nrefused\n");
    let silent = [&options[..], &["--denial", "drop"]].concat();
    assert_eq!(net.script(&silent, &script).succeeded().stdout, "silent\nsilent\nsilent\n");
    drop(listener);
}

#[test]
fn forward_leads_into_a_vm_that_may_reach_nothing_and_the_policy_changes_at_run_time() {
    needs!(kvm, linux, agent, network);
    let net = Net::new();
    // The host speaks first, and the guest leaves the stream open: passt of 2023 ends no handshake without
    // data, and may lose the last bytes of a stream that ends at once.
    let serve = "{ echo hello; sleep 1000; } | busybox nc -l -p 80";
    let options = ["run", "-d", "--name", "web", "--net", "user,forward=8099:80", "--default-deny"];
    net.run(&[&options[..], &[IMAGE, "sh", "-c", serve]].concat()).succeeded();
    let socket = net.images.names.root().join("web/api.sock");
    let ask = |method: &str, body: &str| ask(&socket, method, "/v1/vm/network", body);
    assert_eq!(ask("GET", ""), (200, r#"{"policy":{"default":"deny","denial":"reject"}}"#.to_owned()));
    let reach = |script: &str, expected: &str| {
        let script = format!("{SEND}; {CLOSED}; {script}");
        let outcome = net.run(&["exec", "web", "sh", "-c", &script]);
        assert_eq!(outcome.succeeded().stdout, expected);
    };
    let (closed, open) = ("closed 203.0.113.1 90", "echo hi | send 203.0.113.1");
    reach(closed, "refused\n");
    let mut hello = [0; 6];
    let mut stream = net.network.connect("127.0.0.1:8099");
    stream.write_all(b"go\n").unwrap();
    stream.read_exact(&mut hello).unwrap();
    assert_eq!(&hello, b"hello\n");
    let policy = r#"{"policy":{"default":"deny","allow":["203.0.113.1:90"]}}"#;
    assert_eq!(ask("PUT", policy), (204, String::new()));
    scope(|scope| {
        echo(scope, &net.network, "203.0.113.1:90", &[3, 3]);
        reach(open, "hi\n");
        for (body, words) in [
            (r#"{"policy":{"allow":["10.1.2.3/16"]}}"#, "write 10.1.0.0/16"),
            (r#"{"policy":{"allow":["ex ample.org"]}}"#, "letters, digits"),
            (r#"{"policy":{"allow":["*"],"deny":["*"]}}"#, "in both lists"),
            ("{}", "missing field `policy`"),
        ] {
            let (status, answer) = ask("PUT", body);
            assert!(status == 400 && answer.contains(words), "{status}: {answer}");
        }
        reach(open, "hi\n");
    });
    assert_eq!(ask("PUT", r#"{"policy":{"deny":["*"]}}"#), (204, String::new()));
    reach(closed, "refused\n");
    assert_eq!(ask("PUT", r#"{"policy":null}"#), (204, String::new()));
    assert_eq!(ask("GET", ""), (200, r#"{"policy":null}"#.to_owned()));
}
