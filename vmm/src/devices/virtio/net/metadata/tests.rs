//! Tests with a guest that has a TCP stack of its own.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use serde_json::json;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Instant as StackTime;
use smoltcp::wire::{EthernetAddress, IpCidr, IpEndpoint};

use super::connection::PATIENCE;
use super::link::Link;
use super::*;

const ADDRESS: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// A guest, the service, and the time of both.
struct Bench {
    interface: Interface,
    sockets: SocketSet<'static>,
    link: Link,
    service: MetadataService,
    start: Instant,
    now: Instant,
    next_port: u16,
    /// Frames to the guest so far.
    frames: usize,
}

impl Bench {
    fn new(config: &MetadataConfig) -> Self {
        let mut link = Link::new(1500);
        let address = EthernetAddress([2, 0, 0, 0, 0, 1]);
        let mut interface = Interface::new(Config::new(address.into()), &mut link, StackTime::ZERO);
        interface.update_ip_addrs(|addresses| addresses.push(IpCidr::new(GUEST.into(), 0)).unwrap());
        let (service, start) = (MetadataService::new(config, None), Instant::now());
        let sockets = SocketSet::new(Vec::new());
        Self { interface, sockets, link, service, start, now: start, next_port: 1024, frames: 0 }
    }

    /// A service with some content.
    fn filled() -> Self {
        let config = MetadataConfig::new(["eth0"]);
        config.store.put(json!({"latest": {"user-data": "hello"}})).unwrap();
        Self::new(&config)
    }

    /// Exchanges frames until both sides are silent.
    fn settle(&mut self) {
        loop {
            let time = StackTime::from_micros((self.now - self.start).as_micros() as i64);
            self.interface.poll(time, &mut self.link, &mut self.sockets);
            if let Some(frame) = self.link.take() {
                assert!(self.service.wants(&frame[..MetadataService::START.min(frame.len())]), "{frame:?}");
                self.service.receive(frame, self.now);
                continue;
            }
            self.service.work(self.now);
            let Some(frame) = self.service.next_frame() else { break };
            self.frames += 1;
            self.link.put(frame);
        }
    }

    /// Lets time pass, and does what becomes due.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let NextTurn::At(next) = self.service.next_turn(self.now)
            && next <= end
        {
            self.now = next.max(self.now);
            self.settle();
        }
        self.now = end;
        self.settle();
    }

    fn connect_to(&mut self, port: u16) -> SocketHandle {
        let buffer = |len| SocketBuffer::new(vec![0; len]);
        let handle = self.sockets.add(Socket::new(buffer(0x2_0000), buffer(8192)));
        let socket = self.sockets.get_mut::<Socket<'_>>(handle);
        socket.set_ack_delay(None);
        self.next_port += 1;
        let remote = IpEndpoint::new(ADDRESS.into(), port);
        socket.connect(self.interface.context(), remote, self.next_port).unwrap();
        self.settle();
        handle
    }

    fn connect(&mut self) -> SocketHandle {
        let handle = self.connect_to(80);
        assert_eq!(self.state(handle), State::Established);
        handle
    }

    fn state(&self, handle: SocketHandle) -> State {
        self.sockets.get::<Socket<'_>>(handle).state()
    }

    fn send(&mut self, handle: SocketHandle, text: &str) {
        let sent = self.sockets.get_mut::<Socket<'_>>(handle).send_slice(text.as_bytes()).unwrap();
        assert_eq!(sent, text.len());
        self.settle();
    }

    fn received(&mut self, handle: SocketHandle) -> String {
        let socket = self.sockets.get_mut::<Socket<'_>>(handle);
        let mut bytes = vec![0; socket.recv_queue()];
        if !bytes.is_empty() {
            socket.recv_slice(&mut bytes).unwrap();
        }
        self.settle();
        String::from_utf8(bytes).unwrap()
    }

    /// Sends a request on a new connection, and returns the answer once the connection has ended.
    fn fetch(&mut self, request: &str) -> String {
        let handle = self.connect();
        self.send(handle, &format!("{request}\r\nConnection: close\r\n\r\n"));
        let answer = self.received(handle);
        assert_eq!(self.state(handle), State::CloseWait, "{answer}");
        self.sockets.get_mut::<Socket<'_>>(handle).close();
        self.settle();
        self.sockets.remove(handle);
        answer
    }
}

#[test]
fn guest_gets_a_token_and_data() {
    let config = MetadataConfig::new(["eth0"]).require_token();
    config.store.put(json!({"latest": {"user-data": "hello"}})).unwrap();
    let mut bench = Bench::new(&config);
    let get = "GET /latest/user-data HTTP/1.1";
    assert!(bench.fetch(get).starts_with("HTTP/1.1 401 Unauthorized\r\n"));
    let answer = bench.fetch("PUT /latest/api/token HTTP/1.1\r\nX-metadata-token-ttl-seconds: 60");
    let (head, token) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    let get = format!("{get}\r\nX-metadata-token: {token}");
    assert!(bench.fetch(&get).ends_with("\r\n\r\nhello"));
    bench.pass(Duration::from_secs(61));
    assert!(bench.fetch(&get).starts_with("HTTP/1.1 401 Unauthorized\r\n"));
}

#[test]
fn work_is_told_once_and_open_connections_end_with_a_reset() {
    let config = MetadataConfig::new(["eth0"]).require_token();
    let mut bench = Bench::new(&config);
    assert_eq!(bench.service.take_work(), MetadataMetrics::default());
    bench.fetch("GET /latest HTTP/1.1");
    bench.fetch("GET /latest HTTP/1.1\r\nX-metadata-token: wrong");
    bench.pass(Duration::from_secs(60));
    let work = bench.service.take_work();
    assert_eq!((work.connections, work.connections_ended), (2, 2));
    assert_eq!((work.requests_without_token, work.requests_with_bad_token), (1, 1));
    assert_eq!(work.sent_frames, bench.frames as u64);
    assert!(work.frames >= 8 && work.dropped_frames == 0 && work.sent_bytes > 54 * work.sent_frames);
    assert_eq!(bench.service.take_work(), MetadataMetrics::default());
    bench.connect();
    bench.service.receive(vec![0; 60], bench.now);
    bench.service.reset();
    let work = bench.service.take_work();
    assert_eq!((work.connections, work.connections_ended, work.dropped_frames), (1, 1, 1));
}

#[test]
fn connections_follow_each_other_without_a_pause() {
    let mut bench = Bench::filled();
    for _ in 0..200 {
        assert!(bench.fetch("GET /latest/user-data HTTP/1.1").ends_with("\r\n\r\nhello"));
    }
}

#[test]
fn long_answer_arrives_whole() {
    let config = MetadataConfig::new(["eth0"]);
    let text = "0123456789".repeat(5000);
    config.store.put(json!({ "text": text })).unwrap();
    let mut bench = Bench::new(&config);
    assert!(bench.fetch("GET /text HTTP/1.1").ends_with(&format!("\r\n\r\n{text}")));
}

#[test]
fn requests_on_one_connection_are_answered_in_order() {
    let mut bench = Bench::filled();
    let handle = bench.connect();
    bench.send(handle, "GET /latest HTTP/1.1\r\n\r\nGET /latest/user-data HTTP/1.1\r\n\r\nGET /none HT");
    let both = bench.received(handle);
    assert!(
        both.contains("\r\n\r\nuser-dataHTTP/1.1 200 OK\r\n") && both.ends_with("\r\n\r\nhello"),
        "{both}"
    );
    bench.send(handle, "TP/1.1\r\n\r\n");
    assert!(bench.received(handle).starts_with("HTTP/1.1 404 Not Found\r\n"));
}

#[test]
fn request_in_single_bytes_is_answered() {
    let mut bench = Bench::filled();
    let handle = bench.connect();
    for byte in "PUT /x HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc".split("").filter(|byte| !byte.is_empty()) {
        assert_eq!(bench.received(handle), "");
        bench.send(handle, byte);
    }
    assert!(bench.received(handle).starts_with("HTTP/1.1 404 Not Found\r\n"));
}

#[test]
fn bytes_that_are_no_request_end_their_connection() {
    let mut bench = Bench::filled();
    let long = format!("GET /{}", "a".repeat(5000));
    for (bytes, status) in [("\u{1}\u{2}\r\n\r\n", "400"), (long.as_str(), "400")] {
        let handle = bench.connect();
        bench.send(handle, bytes);
        let answer = bench.received(handle);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert!(answer.contains("\r\nConnection: close\r\n"), "{answer}");
        assert_eq!(bench.state(handle), State::CloseWait);
    }
}

#[test]
fn guest_that_closes_its_end_gets_its_answer() {
    let mut bench = Bench::filled();
    for (request, end) in [("GET /latest/user-data HTTP/1.1\r\n\r\n", "hello"), ("GET /lat", "")] {
        let handle = bench.connect();
        let socket = bench.sockets.get_mut::<Socket<'_>>(handle);
        socket.send_slice(request.as_bytes()).unwrap();
        socket.close();
        bench.settle();
        let answer = bench.received(handle);
        assert!(answer.ends_with(end) && answer.is_empty() == end.is_empty(), "{answer}");
        assert_eq!(bench.state(handle), State::TimeWait);
    }
}

#[test]
fn idle_connection_is_closed_and_a_stalled_one_reset() {
    let mut bench = Bench::filled();
    let (idle, stalled) = (bench.connect(), bench.connect());
    bench.send(stalled, "GET / HTTP/1.1\r\n");
    bench.pass(PATIENCE - Duration::from_secs(1));
    assert_eq!((bench.state(idle), bench.state(stalled)), (State::Established, State::Established));
    bench.pass(Duration::from_secs(2));
    assert_eq!((bench.state(idle), bench.state(stalled)), (State::CloseWait, State::Closed));
    // A guest that never closes its end keeps no connection for long.
    bench.pass(Duration::from_secs(10));
    assert_eq!(bench.service.next_turn(bench.now), NextTurn::Wait);
}

#[test]
fn connection_of_a_sender_without_an_address_ends() {
    let mut bench = Bench::filled();
    let mut opening =
        [&[2; 6][..], &[3, 0, 0, 0, 0, 1], &[8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0]].concat();
    opening.extend([GUEST.octets(), ADDRESS.octets()].concat());
    opening.extend([4, 1, 0, 80, 0, 0, 0, 9, 0, 0, 0, 0, 0x50, 2, 0x10, 0, 0, 0, 0, 0]);
    bench.service.receive(opening, bench.now);
    assert_ne!(bench.service.next_turn(bench.now), NextTurn::Wait);
    bench.pass(PATIENCE + Duration::from_secs(10));
    assert_eq!(bench.service.next_turn(bench.now), NextTurn::Wait);
}

#[test]
fn new_connection_takes_the_place_of_the_oldest() {
    let mut bench = Bench::filled();
    let handles: Vec<_> = (0..40)
        .map(|_| {
            bench.pass(Duration::from_millis(10));
            bench.connect()
        })
        .collect();
    for (at, handle) in handles.into_iter().enumerate() {
        bench.send(handle, "GET /latest/user-data HTTP/1.1\r\n\r\n");
        let answer = bench.received(handle);
        assert_eq!(answer.ends_with("hello"), at >= 8, "connection {at}: {answer}");
    }
    assert!(bench.fetch("GET /latest/user-data HTTP/1.1").ends_with("hello"));
}

#[test]
fn other_ports_are_refused_and_other_protocols_ignored() {
    let mut bench = Bench::filled();
    let handle = bench.connect_to(81);
    assert_eq!(bench.state(handle), State::Closed);
    let before = bench.frames;
    let mut datagram = vec![0; 60];
    datagram[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
    datagram[23] = 17;
    datagram[30..34].copy_from_slice(&ADDRESS.octets());
    assert!(bench.service.wants(&datagram));
    bench.service.receive(datagram, bench.now);
    bench.settle();
    assert_eq!(bench.frames, before);
}

#[test]
fn connection_of_before_a_restore_is_reset_and_a_new_one_works() {
    let mut bench = Bench::filled();
    let old = bench.connect();
    bench.service.reset();
    assert_eq!(bench.service.next_turn(bench.now), NextTurn::Wait);
    bench.send(old, "GET /latest HTTP/1.1\r\n\r\n");
    assert_eq!(bench.state(old), State::Closed);
    assert!(bench.fetch("GET /latest/user-data HTTP/1.1").ends_with("hello"));
}

#[test]
fn frames_to_a_guest_without_buffers_are_bounded() {
    let mut bench = Bench::filled();
    let mut question = vec![0xff; 6];
    question.extend([2, 0, 0, 0, 0, 1, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1]);
    question.extend([GUEST.octets(), [0; 4]].concat());
    question.extend([0, 0]);
    question.extend(ADDRESS.octets());
    for _ in 0..1000 {
        assert!(bench.service.wants(&question));
        bench.service.receive(question.clone(), bench.now);
        assert_ne!(bench.service.next_turn(bench.now), NextTurn::Again);
    }
    let answers = std::iter::from_fn(|| bench.service.next_frame()).collect::<Vec<_>>();
    assert_eq!(answers.len(), 64);
    assert_eq!(answers[0][..12], [2, 0, 0, 0, 0, 1, 6, 1, 0x23, 0x45, 0x67, 1]);
    assert!(bench.fetch("GET /latest/user-data HTTP/1.1").ends_with("hello"));
}

/// A request that was given up leaves a socket that listens. The time of its next connection begins later.
#[test]
fn connection_long_after_a_port_scan_is_served() {
    let mut bench = Bench::filled();
    let closed = bench.connect_to(443);
    assert_eq!(bench.state(closed), State::Closed);
    let aborted = bench.connect();
    bench.sockets.get_mut::<Socket<'_>>(aborted).abort();
    bench.pass(PATIENCE * 2);
    let answer = bench.fetch("GET /latest/user-data HTTP/1.1");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
}
