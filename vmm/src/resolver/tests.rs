//! The resolver, and servers that answer, are silent, lie and fail.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::thread;

use rustix::net::{RecvFlags, SendFlags, recv, send};
use volt_policy::{Ask, HostNetwork, Name};

use super::protocol::{FromResolver, LONGEST, decode, encode, encode_network, encode_problem};
use super::serve::{HostView, serve};
use super::servers::ServersFile;
use crate::testing::ScratchDir;

/// A resolver, and the file of its servers.
struct Running {
    device: OwnedFd,
    file: PathBuf,
    thread: thread::JoinHandle<()>,
    _dir: ScratchDir,
}

impl Running {
    /// Servers at these loopback addresses, all at one port.
    fn start(servers: &[Ipv4Addr], port: u16) -> Self {
        let dir = ScratchDir::new();
        let file = dir.join("resolv.conf");
        std::fs::write(&file, list(servers)).unwrap();
        let (device, far) = super::socket().unwrap();
        let servers = ServersFile::at(&file, port);
        let thread = thread::spawn(move || serve(&far, Some(&HostView::open(&far).unwrap()), servers));
        let running = Self { device, file, thread, _dir: dir };
        let first = running.receive();
        let FromResolver::HostNetwork(network) = decode(&first).unwrap() else { panic!("{first:?}") };
        assert!(network.addresses.iter().all(|net| !net.addr().is_loopback()));
        running
    }

    fn ask(&self, number: u32, name: &str) {
        let ask = Ask { number, name: Name::parse(name).unwrap(), kind: 1 };
        send(&self.device, &encode(&ask), SendFlags::empty()).unwrap();
    }

    fn receive(&self) -> Vec<u8> {
        let mut bytes = vec![0; LONGEST + 4];
        let (_, len) = recv(&self.device, &mut bytes[..], RecvFlags::empty()).unwrap();
        bytes.truncate(len);
        bytes
    }

    /// The number and the message of the next answer.
    fn answer(&self) -> (u32, Option<Vec<u8>>) {
        let bytes = self.receive();
        match decode(&bytes).unwrap() {
            FromResolver::Answer(number, message) => (number, message.map(<[u8]>::to_vec)),
            other => panic!("{other:?}"),
        }
    }

    fn end(self) {
        drop(self.device);
        self.thread.join().unwrap();
    }
}

fn list(servers: &[Ipv4Addr]) -> String {
    let lines = servers.iter().map(|server| format!("nameserver {server}\n"));
    lines.chain(["options timeout:1\n".to_owned()]).collect()
}

/// A loopback address of a test's own.
fn own(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 53, last, 1)
}

/// A server of UDP that answers each question by the messages that `answers` makes of it.
fn server(address: Ipv4Addr, port: u16, answers: impl Fn(&[u8]) -> Vec<Vec<u8>> + Send + 'static) -> u16 {
    let socket = UdpSocket::bind((address, port)).unwrap();
    let port = socket.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut bytes = [0; 512];
        while let Ok((len, from)) = socket.recv_from(&mut bytes) {
            for answer in answers(&bytes[..len]) {
                let _ = socket.send_to(&answer, from);
            }
        }
    });
    port
}

/// The answer to a question, without records and with these flags.
fn empty(question: &[u8], flags: [u8; 2]) -> Vec<u8> {
    let mut answer = question.to_vec();
    answer[2..4].copy_from_slice(&flags);
    answer
}

#[test]
fn answer_of_the_first_server_that_has_one_is_told() {
    let port = server(own(1), 0, |question| vec![empty(question, [0x81, 0x82])]);
    server(own(2), port, |question| {
        let mut forged = empty(question, [0x81, 0x80]);
        forged[0] ^= 1;
        let mut other = empty(question, [0x81, 0x80]);
        other[13] = b'x';
        vec![b"nonsense".to_vec(), forged, other, empty(question, [0x81, 0x83])]
    });
    let running = Running::start(&[own(1), own(2)], port);
    running.ask(7, "www.example.org");
    let (number, message) = running.answer();
    let message = message.unwrap();
    assert_eq!((number, &message[2..4]), (7, &[0x81, 0x83][..]), "the first failed, and others were forged");
    assert_eq!(&message[12..29], b"\x03www\x07example\x03org\0");
    running.end();
}

#[test]
fn questions_that_no_server_answers_fail_and_others_go_on() {
    // Nothing listens at the first address. The second server knows one name.
    let port = server(own(4), 0, |question| match question[13] {
        b'a' => vec![empty(question, [0x81, 0x80])],
        _ => Vec::new(),
    });
    let running = Running::start(&[own(3), own(4)], port);
    running.ask(1, "silent.test");
    running.ask(2, "answered.test");
    assert_eq!(running.answer().0, 2);
    assert_eq!(running.answer(), (1, None));
    // The device may send anything. It is no question.
    send(&running.device, b"\0\0", SendFlags::empty()).unwrap();
    running.ask(3, "answered.test");
    assert_eq!(running.answer().0, 3);
    running.end();
}

#[test]
fn truncated_answer_is_asked_for_over_tcp() {
    let port = server(own(5), 0, |question| vec![empty(question, [0x83, 0x80])]);
    let listener = TcpListener::bind((own(5), port)).unwrap();
    thread::spawn(move || {
        for (connection, size) in listener.incoming().zip([5000, 60_000]) {
            let mut connection = connection.unwrap();
            let mut prefix = [0; 2];
            connection.read_exact(&mut prefix).unwrap();
            let mut question = vec![0; usize::from(u16::from_be_bytes(prefix))];
            connection.read_exact(&mut question).unwrap();
            let mut answer = empty(&question, [0x81, 0x80]);
            answer.resize(size, 0);
            let prefix = (answer.len() as u16).to_be_bytes();
            let answer = [&prefix[..], &answer].concat();
            for part in answer.chunks(999) {
                if connection.write_all(part).is_err() {
                    break;
                }
            }
        }
    });
    let running = Running::start(&[own(5)], port);
    running.ask(1, "long.test");
    let (number, message) = running.answer();
    assert_eq!((number, message.unwrap().len()), (1, 5000));
    // Longer than any honest answer: the server is given up, and asked once more by UDP and TCP in vain.
    running.ask(2, "longer.test");
    assert_eq!(running.answer(), (2, None));
    running.end();
}

#[test]
fn list_of_servers_is_read_again_when_it_changes() {
    let port = server(own(6), 0, |question| vec![empty(question, [0x81, 0x80])]);
    server(own(7), port, |question| vec![empty(question, [0x81, 0x83])]);
    let running = Running::start(&[own(6)], port);
    running.ask(1, "a.test");
    assert_eq!(running.answer().1.unwrap()[3], 0x80);
    // As tools do: another file takes its place.
    let fresh = running.file.with_extension("new");
    std::fs::write(&fresh, list(&[own(7)])).unwrap();
    std::fs::rename(&fresh, &running.file).unwrap();
    running.ask(2, "a.test");
    assert_eq!(running.answer().1.unwrap()[3], 0x83);
    std::fs::remove_file(&running.file).unwrap();
    running.ask(3, "a.test");
    let (number, message) = running.answer();
    assert_eq!((number, message), (3, None), "nothing listens at 127.0.0.1 there");
    running.end();
}

#[test]
fn flood_of_questions_is_answered_in_turn() {
    let port = server(own(8), 0, |question| vec![empty(question, [0x81, 0x80])]);
    let running = Running::start(&[own(8)], port);
    // More than it takes at once: the others fail.
    for round in 0..20 {
        let numbers = round * 100 + 1..=round * 100 + 100;
        numbers.clone().for_each(|number| running.ask(number, "a.test"));
        let answered: std::collections::BTreeSet<_> = numbers.clone().map(|_| running.answer().0).collect();
        assert!(answered.into_iter().eq(numbers), "each question has one answer");
    }
    running.end();
}

#[test]
fn network_of_the_host_survives_the_way_to_the_device() {
    let addresses = ["192.0.2.1/32", "2001:db8::1/128", "198.51.100.0/24"].map(|net| net.parse().unwrap());
    for (routes_v4, routes_v6) in [(true, false), (false, true), (true, true)] {
        let network = HostNetwork { addresses: addresses.to_vec(), routes_v4, routes_v6 };
        let bytes = super::protocol::encode_network(&network);
        assert_eq!(decode(&bytes).unwrap(), FromResolver::HostNetwork(network));
    }
    assert!(decode(b"\0\0\0\0nonsense").is_err());
    assert!(decode(b"\0\0\0").is_err());
}

#[test]
fn problems_are_told_and_a_network_with_too_many_addresses_is_one() {
    let problem = encode_problem("the resolver cannot read a file");
    assert_eq!(decode(&problem).unwrap(), FromResolver::Problem("the resolver cannot read a file"));
    let network = |addresses: u32| HostNetwork {
        addresses: (0..addresses)
            .map(|at| Ipv4Addr::from_bits(0x0a00_0000 + at))
            .map(|a| IpAddr::from(a).into())
            .collect(),
        routes_v4: true,
        routes_v6: false,
    };
    assert_eq!(decode(&encode_network(&network(4000))).unwrap(), FromResolver::HostNetwork(network(4000)));
    let message = encode_network(&network(20_000));
    let FromResolver::Problem(problem) = decode(&message).unwrap() else { panic!("{}", message.len()) };
    assert!(problem.contains("too many addresses"));
}
