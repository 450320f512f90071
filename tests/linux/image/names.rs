//! A policy with rules by name, in VMs that run an image behind passt, and servers beyond the host.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Scope, ScopedJoinHandle, scope};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use client_hello::client_hello;
use volt_tests::needs;
use volt_tests::streams::{Limited, await_ready, each_stream};
use volt_tests::wait_until;

use super::network::{Net, Resolver};
use super::runs::IMAGE;

#[path = "../../../kernel/guest/src/client_hello.rs"]
mod client_hello;

/// The address of all names, and another one.
const FAR: &str = "192.0.2.77";
const OTHER: &str = "192.0.2.78";

/// `tls NAME ADDRESS` sends the first message of TLS for a name, in parts of 1 KiB (busybox), and prints what
/// the server says, or `nothing`.
fn tls(names: &[&str]) -> String {
    let case = |name: &&str| format!("{name}) echo {} ;;", BASE64_STANDARD.encode(client_hello(name)));
    let cases: String = names.iter().map(case).collect();
    format!(
        "hello() {{ case $1 in {cases} esac; }}
        tls() {{ {{ hello $1 | busybox base64 -d; sleep 3; }} |
                busybox timeout 6 busybox nc $2 443 >/out 2>/dev/null
            [ -s /out ] && cat /out || echo nothing; }}
        resolve() {{ busybox nslookup -type=a $1 10.118.111.3 2>&1 |
            busybox awk '/NXDOMAIN/ {{ print \"none\"; exit }} /^Address: / {{ print $2; exit }}'; }}"
    )
}

/// Answers connections that bring so many bytes, in parts or at once. Returns what each brought.
fn serve<'a>(
    scope: &'a Scope<'a, '_>,
    listener: TcpListener,
    len: usize,
    has_ended: &'a AtomicBool,
) -> ScopedJoinHandle<'a, Vec<Vec<u8>>> {
    scope.spawn(move || {
        let mut got = Vec::new();
        each_stream(&listener, has_ended, |mut stream| {
            let mut bytes = Vec::new();
            // A connection that the policy ends brings nothing, and may end with a reset.
            let _ = (&mut stream).take(len as u64).read_to_end(&mut bytes);
            if bytes.len() == len {
                stream.write_all(b"hello from the server\n").unwrap();
            }
            got.push(bytes);
        });
        got
    })
}

#[test]
fn guest_resolves_and_reaches_the_names_that_the_policy_allows_and_no_others() {
    needs!(kvm, linux, agent, network);
    let net = Net::new();
    let (far, _cable) = net.network.beyond(&[&format!("{FAR}/24"), &format!("{OTHER}/24")]);
    let resolver = Resolver::new(&net.network);
    let listener = far.listen(&format!("{FAR}:443"));
    let other = far.listen(&format!("{OTHER}:443"));
    let names = ["good.example.org", "evil.test"];
    let script = format!(
        "{}
        resolve secret.evil.test; resolve example.org
        tls good.example.org {FAR}
        resolve good.example.org
        tls good.example.org {FAR}; tls evil.test {FAR}; tls good.example.org {OTHER}
        resolve GOOD.example.org
        echo end",
        tls(&names)
    );
    let options = ["--net", "user", "--default-deny", "--allow", "*.example.org:443"];
    let has_ended = AtomicBool::new(false);
    let (outcome, got) = scope(|scope| {
        let _ends = resolver.serve(scope);
        let served = serve(scope, listener, client_hello("good.example.org").len(), &has_ended);
        let outcome = net.script(&options, &script);
        has_ended.store(true, Ordering::SeqCst);
        (outcome, served.join().unwrap())
    });
    let expected = [
        "none",
        "none",
        // No name has led to the address yet.
        "nothing",
        FAR,
        "hello from the server",
        "nothing",
        "nothing",
        FAR,
        "end\n",
    ];
    assert_eq!(outcome.succeeded().stdout, expected.join("\n"), "{outcome:?}");
    assert_eq!(resolver.questions(), 2, "denied names go nowhere");
    assert_eq!(got, [client_hello("good.example.org"), Vec::new()]);
    other.set_nonblocking(true).unwrap();
    assert!(other.accept().is_err(), "no connection to an address without a name");
    for words in ["a question for secret.evil.test is denied: no rule", "tcp to 192.0.2.77 port 443: no rule"]
    {
        assert!(outcome.stderr.contains(words), "{words}: {}", outcome.stderr);
    }
    net.images.are_empty();
}

#[test]
fn every_request_of_http_is_judged_by_its_host() {
    needs!(kvm, linux, agent, network);
    let net = Net::new();
    let (far, _cable) = net.network.beyond(&[&format!("{FAR}/24")]);
    let resolver = Resolver::new(&net.network);
    let listener = far.listen(&format!("{FAR}:80"));
    // Each request is answered, and the connection stays open for another one.
    let script = format!(
        "busybox nslookup -type=a good.example.org 10.118.111.3 >/found 2>&1
        ask() {{ printf 'GET /%s HTTP/1.1\r\nHost: %s\r\n\r\n' $1 $2; }}
        {{ ask one good.example.org; sleep 2; }} | busybox timeout 20 busybox nc {FAR} 80 | busybox tail -n 1
        {{ ask two a.example.org; sleep 2; ask three evil.test; sleep 2; }} |
            busybox timeout 20 busybox nc {FAR} 80 | busybox tail -n 1
        {{ ask four evil.test; sleep 2; }} | busybox timeout 20 busybox nc {FAR} 80 | busybox head -n 1 |
            busybox tr -d '\r'
        echo end"
    );
    let options = ["--net", "user", "--default-deny", "--allow", "*.example.org:80"];
    let has_ended = AtomicBool::new(false);
    let (outcome, got) = scope(|scope| {
        let _ends = resolver.serve(scope);
        let served = scope.spawn(|| answer_requests(&listener, &has_ended));
        let outcome = net.script(&options, &script);
        has_ended.store(true, Ordering::SeqCst);
        (outcome, served.join().unwrap())
    });
    let expected = "seen GET /one HTTP/1.1\nseen GET /two HTTP/1.1\nHTTP/1.1 403 Forbidden\nend\n";
    assert_eq!(outcome.succeeded().stdout, expected, "{outcome:?}");
    assert_eq!(got, ["GET /one HTTP/1.1", "GET /two HTTP/1.1"], "no byte of a denied request");
    assert!(outcome.stderr.contains("a request to 192.0.2.77 port 80: no rule"), "{}", outcome.stderr);
    net.images.are_empty();
}

/// Answers requests. Returns their first lines.
fn answer_requests(listener: &TcpListener, has_ended: &AtomicBool) -> Vec<String> {
    let mut got = Vec::new();
    each_stream(listener, has_ended, |mut stream| {
        let mut bytes = Vec::new();
        let mut part = [0; 1024];
        while let Ok(len @ 1..) = stream.read(&mut part) {
            bytes.extend_from_slice(&part[..len]);
            if bytes.ends_with(b"\r\n\r\n") {
                let first = String::from_utf8_lossy(&bytes).lines().next().unwrap_or_default().to_owned();
                let body = format!("seen {first}\n");
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
                stream.write_all((head + &body).as_bytes()).unwrap();
                got.push(first);
                bytes.clear();
            }
        }
    });
    got
}

#[test]
fn connections_of_a_fork_s_child_are_reset_and_those_of_its_parent_go_on() {
    needs!(kvm, linux, agent, network);
    let net = Net::new();
    let (far, _cable) = net.network.beyond(&[&format!("{FAR}/24")]);
    let listener = far.listen(&format!("{FAR}:90"));
    let script = format!("busybox nc {FAR} 90 </dev/tty; echo ended; exec sleep 1000");
    let options = ["run", "-dt", "--name", "parent", "--net", "user"];
    net.run(&[&options[..], &[IMAGE, "sh", "-c", &script]].concat()).succeeded();
    await_ready("the guest connects", &listener);
    let mut stream = listener.accept().unwrap().0;
    stream.limit().unwrap();
    stream.write_all(b"hello\n").unwrap();
    let logs = |name: &str| net.run(&["logs", name]).succeeded().stdout.replace('\r', "");
    wait_until("the parent has what the server says", || logs("parent").contains("hello"));
    net.run(&["fork", "parent", "--name", "child"]).succeeded();
    wait_until("the child's connection ends", || logs("child").contains("ended"));
    stream.write_all(b"more\n").unwrap();
    wait_until("the parent's goes on", || logs("parent").contains("more"));
    assert!(!logs("parent").contains("ended"));
    net.run(&["rm", "-f", "parent", "child"]).succeeded();
}
