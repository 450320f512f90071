//! Clients that hang up in the middle, send a byte a second, or come five hundred at a time. Others are
//! answered meanwhile, and the VM runs on.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use volt_tests::streams::Limited;
use volt_tests::{Guest, needs, patience, rest, wait_until};

const CLIENTS: usize = 500;
/// Longest time of an answer on a busy host.
const SOON: Duration = Duration::from_secs(30);
const PAUSE: &str = r#"{"state":"Paused"}"#;

fn counting() -> Guest {
    let mut guest = Guest::boot("count");
    guest.wait_for("count");
    guest
}

fn request(method: &str, path: &str, body: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn descriptors(guest: &Guest) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", guest.pid())).unwrap().count()
}

/// Checks that another client is answered.
fn answers_soon(guest: &Guest) {
    let begun = Instant::now();
    assert_eq!(guest.ask("GET", "/", "").0, 200);
    assert!(begun.elapsed() < SOON, "an answer took {:?}", begun.elapsed());
}

#[test]
fn client_that_hangs_up_harms_no_other() {
    needs!(kvm);
    let mut guest = counting();
    let before = descriptors(&guest);
    for (method, path, body) in [
        ("GET", "/", ""),
        ("GET", "/vm/config", ""),
        ("PATCH", "/vm", PAUSE),
        ("PUT", "/mmds", r#"{"a":"b"}"#),
        ("PUT", "/drives/a", r#"{"drive_id":"a","path_on_host":"/d","is_root_device":false}"#),
        ("GET", "/v1/vm", ""),
        ("GET", "/v1/vm/events", ""),
        ("GET", "/metrics", ""),
        ("POST", "/v1/vm/snapshots", r#"{"path":"/nowhere/x"}"#),
    ] {
        let whole = request(method, path, body);
        // Nothing, within the head, between head and body, within the body, and before the answer is read.
        let cuts = [0, 1, whole.len() / 3, whole.len() - body.len(), whole.len() - 1, whole.len()];
        for (cut, only_writes) in cuts.into_iter().flat_map(|cut| [(cut, false), (cut, true)]) {
            let mut stream = rest::connect(guest.socket());
            stream.limit().unwrap();
            stream.write_all(&whole.as_bytes()[..cut]).unwrap();
            if only_writes {
                stream.shutdown(Shutdown::Write).unwrap();
            }
        }
        answers_soon(&guest);
    }
    wait_until("the connections are closed", || descriptors(&guest) <= before);
    // A whole request counts although its client does not wait.
    wait_until("the pause of a client that hung up", || {
        guest.ask("GET", "/", "").1.contains(r#""state":"Paused""#)
    });
    guest.resume();
    guest.next_number("count");
}

/// Sends a byte a second until the server hangs up. Returns how long that took, and the answer.
fn send_slowly(mut stream: UnixStream, bytes: &[u8]) -> (Duration, String) {
    let begun = Instant::now();
    stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let (mut answer, mut more) = (Vec::new(), [0; 4096]);
    let mut bytes = bytes.iter();
    while begun.elapsed() < patience() {
        if let Some(byte) = bytes.next() {
            // The server may have hung up.
            let _ = stream.write_all(&[*byte]);
        }
        match stream.read(&mut more) {
            Ok(0) => return (begun.elapsed(), String::from_utf8(answer).unwrap()),
            Ok(count) => answer.extend_from_slice(&more[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return (begun.elapsed(), String::from_utf8(answer).unwrap()),
        }
    }
    panic!("the server waits for a slow client: {answer:?}");
}

#[test]
fn client_that_sends_a_byte_a_second_is_cut_off_and_hinders_no_other() {
    needs!(kvm);
    let mut guest = counting();
    let (head, body) = (request("GET", &format!("/{}", "x".repeat(1000)), ""), " ".repeat(1000));
    let begun_body = request("PUT", "/mmds", &body);
    let begun_body = &begun_body[..begun_body.len() - body.len()];
    let connected = |begin: &str| {
        let mut stream = rest::connect(guest.socket());
        stream.write_all(begin.as_bytes()).unwrap();
        stream
    };
    thread::scope(|scope| {
        let heads: Vec<_> = (0..8).map(|_| connected("")).collect();
        let bodies: Vec<_> = (0..8).map(|_| connected(begun_body)).collect();
        let heads: Vec<_> =
            heads.into_iter().map(|stream| scope.spawn(|| send_slowly(stream, head.as_bytes()))).collect();
        let bodies: Vec<_> =
            bodies.into_iter().map(|stream| scope.spawn(|| send_slowly(stream, body.as_bytes()))).collect();
        while !heads.iter().chain(&bodies).all(|client| client.is_finished()) {
            answers_soon(&guest);
            thread::sleep(Duration::from_millis(100));
        }
        for client in heads {
            let (took, answer) = client.join().unwrap();
            assert!(took >= Duration::from_secs(9) && !answer.contains(" 200 "), "{took:?}: {answer}");
        }
        for client in bodies {
            let (took, answer) = client.join().unwrap();
            assert!(
                took >= Duration::from_secs(9) && answer.starts_with("HTTP/1.1 408 "),
                "{took:?}: {answer}"
            );
            assert!(answer.contains("request body: not complete after 10 seconds"), "{answer}");
        }
    });
    guest.next_number("count");
    assert_eq!(guest.messages(), "");
}

/// Allows this process as many descriptors as its hard limit does.
fn allow_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
}

#[test]
fn clients_that_read_no_answer_are_cut_off() {
    needs!(kvm);
    allow_descriptors();
    let guest = counting();
    let requests = request("GET", "/openapi.json", "").repeat(20);
    let connect = || {
        let mut stream = rest::connect(guest.socket());
        stream.write_all(requests.as_bytes()).unwrap();
        stream
    };
    // As many as the socket takes: the next one waits for the end of one of them.
    let silent: Vec<_> = (0..512).map(|_| connect()).collect();
    answers_soon(&guest);
    drop(silent);
}

#[test]
fn five_hundred_clients_at_once_are_all_answered() {
    needs!(kvm);
    allow_descriptors();
    let mut guest = counting();
    let before = descriptors(&guest);
    let kinds = [
        (request("GET", "/", ""), "200"),
        (request("GET", "/vm/config", ""), "200"),
        (request("PUT", "/mmds", r#"{"a":"b"}"#), "204"),
        (request("GET", "/v1/vm", ""), "200"),
        (request("GET", "/nowhere", ""), "400"),
    ];
    // All are connected before the first one sends.
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| rest::connect(guest.socket())).collect();
    wait_until("all are accepted", || descriptors(&guest) >= before + CLIENTS);
    answers_soon(&guest);
    for (client, (text, _)) in clients.iter_mut().zip(kinds.iter().cycle()) {
        client.limit().unwrap();
        client.write_all(text.as_bytes()).unwrap();
    }
    let begun = Instant::now();
    for (client, (text, status)) in clients.iter_mut().zip(kinds.iter().cycle()) {
        let mut answer = [0; 12];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(answer, format!("HTTP/1.1 {status}").as_bytes(), "{text}");
    }
    assert!(begun.elapsed() < SOON, "answers took {:?}", begun.elapsed());
    // A VM with so many clients takes a snapshot, which needs descriptors of its own.
    let snapshot = guest.snapshot();
    drop(clients);
    wait_until("the connections are closed", || descriptors(&guest) <= before + 4);
    guest.next_number("count");
    snapshot.restore().next_number("count");
}
