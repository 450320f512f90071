//! Ports of the host that lead to programs in a VM: `run --publish`, and `port-forward`.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread::{scope, sleep};
use std::time::Duration;

use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::process::Signal;
use serde_json::json;
use volt_image::digest;
use volt_tests::streams::{Limited, bytes_of};
use volt_tests::{Input, needs, wait_until};

use super::layers::large;
use super::runs::{IMAGE, Images};

/// Bytes of a question.
const LEN: usize = 1 << 20;
/// Answers with the digest of the question, once that has ended, and the large file.
const ANSWER: &str = "sha256sum; cat /large";

/// Connects to a port, sends a question with its end, and returns the answer. It is empty if the connection
/// breaks.
fn ask(port: u16, question: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.limit().unwrap();
    let mut answer = Vec::new();
    let sent = stream.write_all(question).and_then(|()| stream.shutdown(Shutdown::Write));
    match sent.and_then(|()| stream.read_to_end(&mut answer)) {
        Ok(_) => answer,
        Err(_) => Vec::new(),
    }
}

/// Ends the question at once, and reads the answer late.
fn ask_slowly(port: u16) -> Vec<u8> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.limit().unwrap();
    // The host's sockets do not take all of the answer.
    set_socket_recv_buffer_size(&stream, 128 << 10).unwrap();
    let mut answer = Vec::new();
    // A connection to no program may break before.
    let _ = stream.shutdown(Shutdown::Write);
    sleep(Duration::from_millis(200));
    let _ = stream.read_to_end(&mut answer);
    answer
}

/// Asks until a program listens, and checks the answer of [`ANSWER`].
fn assert_answers(port: u16, number: usize) {
    let question = bytes_of(number, LEN);
    let mut answer = Vec::new();
    wait_until("a program answers", || {
        answer = ask(port, &question);
        !answer.is_empty()
    });
    let expected = [format!("{}  -\n", digest::of(&question).digest()).as_bytes(), &large()].concat();
    assert!(answer == expected, "{} bytes of {}", answer.len(), expected.len());
}

fn is_closed(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_err()
}

/// The host's port in a line `127.0.0.1:PORT -> web:GUEST`.
fn port_in(text: &str, guest: u16) -> u16 {
    let port = text.lines().find_map(|line| {
        let (before, _) = line.split_once(&format!(" -> web:{guest}"))?;
        before.rsplit_once("127.0.0.1:")?.1.parse().ok()
    });
    port.unwrap_or_else(|| panic!("no port in {text:?}"))
}

#[test]
fn published_and_forwarded_ports_lead_to_a_program_until_the_vm_ends() {
    needs!(kvm, linux, agent);
    let images = Images::new();
    let serve = format!("exec nc -ll -p 8080 -e sh -c '{ANSWER}'");
    let options = ["run", "-d", "--name", "web", "--upper", "memory", "-p", "0:8080", "--publish", "0:9"];
    let outcome = images.run(&[&options[..], &[IMAGE, "sh", "-c", &serve]].concat());
    assert_eq!((outcome.status, &*outcome.stdout), (0, "web\n"), "{outcome:?}");
    let (published, dead) = (port_in(&outcome.stderr, 8080), port_in(&outcome.stderr, 9));
    let recorded = &images.names.json("inspect web --json")["ports"];
    let forward = |host, guest| json!({"address": format!("127.0.0.1:{host}"), "port": guest});
    assert_eq!(*recorded, json!([forward(published, 8080), forward(dead, 9)]));
    assert_eq!(ask(dead, b"question"), b"");
    let told = images.names.ok("logs --messages web");
    assert!(told.contains("web:9: VM web: no program listens at TCP port 9\n"), "{told}");
    assert_answers(published, 1);

    let taken = format!("{published}:80");
    images.run(&["run", "-d", "--name", "db", "-p", &taken, IMAGE]).refused(&["publish", "in use", "or 0"]);
    images.names.run(&format!("port-forward web {taken}")).refused(&["ports", "in use", "or 0"]);
    let mut client = images.start(&["port-forward", "web", "0:8080", "0:9"], Input::Null);
    client.wait_for(" -> web:9\n");
    let (forwarded, silent) = (port_in(&client.output(), 8080), port_in(&client.output(), 9));
    scope(|scope| (2..6).for_each(|number| drop(scope.spawn(move || assert_answers(forwarded, number)))));
    assert_eq!((ask(silent, b""), ask(silent, b"question")), (Vec::new(), Vec::new()));
    // The second one is no news.
    let told = format!("volt-vmm: 127.0.0.1:{silent} -> web:9: VM web: no program listens at TCP port 9\n");
    assert_eq!(client.stderr(), told);
    let mut other = images.start(&["port-forward", "web", "0:8080", "--json"], Input::Null);
    other.wait_for("\"address\": \"127.0.0.1:");
    other.signal(Signal::INT);
    assert_eq!(other.wait_exit().status, 130);

    // A client that does not end its side holds nothing up.
    let mut idle = TcpStream::connect(("127.0.0.1", forwarded)).unwrap();
    idle.limit().unwrap();
    images.run(&["stop", "web"]).succeeded();
    let outcome = client.wait_exit();
    assert!(outcome.status == 143 && outcome.stderr.contains("VM web has ended: "), "{outcome:?}");
    assert_eq!(idle.read(&mut [0]).unwrap(), 0);
    wait_until("the published port is closed", || is_closed(published));
    images.run(&["rm", "web"]).succeeded();
    images.are_empty();
}

#[test]
fn published_port_outlives_the_client_and_has_the_last_bytes_of_the_main_process() {
    needs!(kvm, linux, agent);
    let images = Images::new();
    let serve = "echo ready; exec nc -l -p 8080 -e sh -c 'cat >/dev/null; cat /large'";
    let words = ["run", "--rm", "--name", "web", "-p", "0:8080", IMAGE, "sh", "-c", serve];
    let mut client = images.start(&words, Input::Null);
    client.wait_for("ready\n");
    let port = port_in(&client.stderr(), 8080);
    client.kill();
    // The program ends with its one answer, and the VM with it. Most bytes wait in the VM then.
    let mut answer = Vec::new();
    wait_until("the program answers", || {
        answer = ask_slowly(port);
        !answer.is_empty()
    });
    assert!(answer == large(), "{} bytes", answer.len());
    images.are_empty();
    wait_until("the port is closed", || is_closed(port));
}
