//! A policy with rules by name, in VMs that run an image behind passt, and servers beyond the host.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Scope, ScopedJoinHandle, scope};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use volt_tests::needs;
use volt_tests::streams::Limited;

use super::network::{Net, Resolver};

/// The address of all names, and another one.
const FAR: &str = "192.0.2.77";
const OTHER: &str = "192.0.2.78";

/// The first message of a client of TLS, with a server's name (RFC 8446, section 4.1.2; RFC 6066, section 3).
fn hello(name: &str) -> Vec<u8> {
    let vector = |len: usize, content: &[u8]| [&content.len().to_be_bytes()[8 - len..], content].concat();
    let names = vector(2, &[&[0][..], &vector(2, name.as_bytes())].concat());
    let extension = [&[0, 0][..], &vector(2, &names)].concat();
    let suites = vector(2, &[0x13, 1]);
    let body =
        [&[3, 3][..], &[7; 32], &vector(1, &[]), &suites, &vector(1, &[0]), &vector(2, &extension)].concat();
    let message = [&[1][..], &vector(3, &body)].concat();
    [&[22, 3, 1][..], &vector(2, &message)].concat()
}

/// `tls NAME ADDRESS` sends the first message of TLS for a name, and prints what the server says, or `refused`.
fn tls(names: &[&str]) -> String {
    let case = |name: &&str| format!("{name}) echo {} ;;", BASE64_STANDARD.encode(hello(name)));
    let cases: String = names.iter().map(case).collect();
    format!(
        "hello() {{ case $1 in {cases} esac; }}
        tls() {{ {{ hello $1 | busybox base64 -d; sleep 3; }} | busybox timeout 6 busybox nc $2 443 >/out 2>/dev/null
            [ -s /out ] && cat /out || echo nothing; }}
        resolve() {{ busybox nslookup -type=a $1 10.118.111.3 2>&1 |
            busybox awk '/NXDOMAIN/ {{ print \"none\"; exit }} /^Address: / {{ print $2; exit }}'; }}"
    )
}

/// Accepts connections until the script has ended, and answers those that bring bytes. Returns what each
/// brought.
fn serve<'a>(
    scope: &'a Scope<'a, '_>,
    listener: TcpListener,
    has_ended: &'a AtomicBool,
) -> ScopedJoinHandle<'a, Vec<Vec<u8>>> {
    listener.set_nonblocking(true).unwrap();
    scope.spawn(move || {
        let mut got = Vec::new();
        while !has_ended.load(Ordering::SeqCst) {
            let Ok((mut stream, _)) = listener.accept() else {
                std::thread::sleep(Duration::from_millis(20));
                continue;
            };
            stream.limit().unwrap();
            let mut bytes = vec![0; 4096];
            // A connection that the policy ends brings nothing.
            let len = stream.read(&mut bytes).unwrap_or(0);
            bytes.truncate(len);
            if len > 0 {
                stream.write_all(b"hello from the server\n").unwrap();
            }
            got.push(bytes);
        }
        got
    })
}

#[test]
fn guest_resolves_and_reaches_the_names_that_the_policy_allows_and_no_others() {
    needs!(kvm, linux, agent, network, passt);
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
        let served = serve(scope, listener, &has_ended);
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
    assert_eq!(got, [hello("good.example.org"), Vec::new()]);
    other.set_nonblocking(true).unwrap();
    assert!(other.accept().is_err(), "no connection to an address without a name");
    for words in ["a question for secret.evil.test is denied: no rule", "tcp to 192.0.2.77 port 443: no rule"]
    {
        assert!(outcome.stderr.contains(words), "{words}: {}", outcome.stderr);
    }
    net.images.are_empty();
}
