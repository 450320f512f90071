//! Tests of the device between a guest that speaks packets and host programs.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::credit::BUFFER;
use super::packet::{PacketHeader, STREAM, op, shut};
use super::testing::{CID, ROOM, TestGuest, device, noise, raise_descriptor_limit, read_line, read_to_end};
use super::*;
use crate::sync::lock;
use crate::testing::limited;

#[test]
fn configuration_has_the_guests_cid() {
    let mut guest = TestGuest::new();
    assert_eq!((guest.driver.get(0x08), guest.driver.get(0x100), guest.driver.get(0x104)), (19, CID, 0));
}

#[test]
fn data_flows_with_event_indices() {
    let mut guest = TestGuest::new();
    guest.driver.set_up(!0);
    guest.post(32);
    let (mut host, ports) = guest.accept(1);
    for _ in 0..100 {
        host.write_all(b"ping").unwrap();
        assert_eq!(guest.receive_data(4), b"ping");
        guest.send_data(ports, b"pong");
        host.read_exact(&mut [0; 4]).unwrap();
    }
}

// ---- Connecting ----

#[test]
fn connection_from_the_host_carries_data_both_ways() {
    let mut guest = TestGuest::new();
    let (mut host, ports) = guest.accept(1024);
    host.write_all(b"hello guest").unwrap();
    assert_eq!(guest.receive_data(11), b"hello guest");
    guest.send_data(ports, b"hello host");
    let mut hello = [0; 10];
    host.read_exact(&mut hello).unwrap();
    assert_eq!(&hello, b"hello host");
    let (_other, other) = guest.accept(1024);
    assert_ne!(ports, other);
}

/// Counts the ends that the device tells. Each call of the first closure asks for one.
fn count_of_ends() -> (impl Fn(&TestGuest), impl Fn(usize)) {
    let ended = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&ended);
    let ask = move |guest: &TestGuest| {
        let counted = Arc::clone(&counted);
        let count = move || {
            counted.fetch_add(1, Ordering::SeqCst);
        };
        lock(&guest.vsock.upgrade().unwrap()).at_end_of_connection(count);
    };
    (ask, move |count| assert_eq!(ended.load(Ordering::SeqCst), count))
}

/// Closes a connection of a host program.
fn close(guest: &mut TestGuest, stream: UnixStream, ports: (u32, u32)) {
    drop(stream);
    guest.expect(op::SHUTDOWN);
    guest.send_op(op::RST, ports);
    guest.expect_silence();
}

#[test]
fn end_of_the_first_connection_of_a_host_program_is_told_once() {
    let mut guest = TestGuest::new();
    let (ask, is_told) = count_of_ends();
    ask(&guest);
    // No end counts of a connection that the guest began or refused, or of this program's.
    let mut refused = guest.call("CONNECT 9\n");
    let request = guest.expect(op::REQUEST);
    guest.send_op(op::RST, (request.src_port, 9));
    assert_eq!(read_to_end(&mut refused), b"");
    let (mut near, far) = UnixStream::pair().unwrap();
    far.set_nonblocking(true).unwrap();
    lock(&guest.vsock.upgrade().unwrap()).add_caller(far);
    near.write_all(b"CONNECT 1\n").unwrap();
    let request = guest.expect(op::REQUEST);
    guest.send_op(op::RESPONSE, (request.src_port, 1));
    assert_eq!(read_line(&mut near), format!("OK {}\n", request.src_port));
    close(&mut guest, near, (request.src_port, 1));
    let listener = guest.listen(80);
    let own = guest.connect(&listener, (80, 5000));
    close(&mut guest, own, (80, 5000));
    is_told(0);
    for _ in 0..2 {
        let (later, ports) = guest.accept(1);
        close(&mut guest, later, ports);
        is_told(1);
    }
}

/// A command in a fork's child may run before the process listens for its end.
#[test]
fn connection_from_before_the_question_for_its_end_counts() {
    let mut guest = TestGuest::new();
    let (ask, is_told) = count_of_ends();
    let (before, ports) = guest.accept(1);
    ask(&guest);
    is_told(0);
    close(&mut guest, before, ports);
    is_told(1);
    ask(&guest);
    is_told(2);
}

#[test]
fn early_data_of_the_host_waits_for_the_response() {
    let mut guest = TestGuest::new();
    let mut host = guest.call("CONNECT 5\nat once");
    host.shutdown(Shutdown::Write).unwrap();
    let request = guest.expect(op::REQUEST);
    guest.expect_silence();
    guest.send_op(op::RESPONSE, (request.src_port, 5));
    assert_eq!(guest.receive_data(7), b"at once");
    assert_eq!(guest.expect(op::SHUTDOWN).flags, shut::SEND);
    assert_eq!(read_line(&mut host), format!("OK {}\n", request.src_port));
}

#[test]
fn connection_from_the_guest_carries_data_both_ways() {
    let mut guest = TestGuest::new();
    let listener = guest.listen(80);
    let mut host = guest.connect(&listener, (80, 5000));
    guest.send_data((80, 5000), b"GET /");
    let mut request = [0; 5];
    host.read_exact(&mut request).unwrap();
    assert_eq!(&request, b"GET /");
    host.write_all(b"200").unwrap();
    assert_eq!(guest.receive_data(3), b"200");
}

#[test]
fn connection_to_a_port_without_listener_is_refused() {
    let mut guest = TestGuest::new();
    drop(guest.listen(81)); // its socket file stays
    for port in [80, 81] {
        guest.send_op(op::REQUEST, (port, 5000));
        let refusal = guest.expect(op::RST);
        assert_eq!((refusal.src_port, refusal.dst_port), (port, 5000));
    }
}

#[test]
fn connection_that_the_guest_refuses_is_closed() {
    let mut guest = TestGuest::new();
    let mut host = guest.call("CONNECT 9\n");
    let request = guest.expect(op::REQUEST);
    guest.send_op(op::RST, (request.src_port, 9));
    assert_eq!(read_to_end(&mut host), b"");
    guest.expect_silence();
}

#[test]
fn invalid_and_leaving_callers_are_dropped() {
    let mut guest = TestGuest::new();
    for line in ["HELLO\n", "CONNECT me\n", "CONNECT 4294967296\n", &"x".repeat(100)] {
        let mut host = guest.call(line);
        // A socket that is closed with unread bytes is reset.
        assert!(!matches!(host.read(&mut [0]), Ok(1)), "{line}");
    }
    drop(guest.call(""));
    drop(guest.call("CONN"));
    let _slow = guest.call("CONNECT 1");
    let gone = guest.call("CONNECT 2\n");
    let request = guest.expect(op::REQUEST);
    drop(gone);
    assert_eq!(guest.expect(op::RST).src_port, request.src_port);
    guest.expect_silence();
}

#[test]
fn oldest_of_too_many_callers_is_dropped() {
    raise_descriptor_limit();
    let mut guest = TestGuest::new();
    let mut oldest = guest.call("");
    let others: Vec<_> = (0..1024).map(|_| guest.call("")).collect();
    assert_eq!(read_to_end(&mut oldest), b"");
    (&others[1023]).write_all(b"CONNECT 1\n").unwrap();
    guest.expect(op::REQUEST);
}

// ---- Data ----

#[test]
fn guest_gets_no_more_than_it_has_room_for() {
    let mut guest = TestGuest::new();
    let (mut host, ports) = guest.accept(1);
    let data = noise(1, 100_000);
    host.write_all(&data).unwrap();
    let mut got = guest.receive_data(ROOM as usize);
    guest.expect(op::CREDIT_REQUEST);
    guest.expect_silence();
    for (room, more) in [(ROOM + 1, 1), (ROOM + 4000, 3999), (ROOM + 10_000, 6000)] {
        let update = PacketHeader { buf_alloc: room, ..guest.header(op::CREDIT_UPDATE, ports) };
        guest.send(update, &[]);
        got.extend(guest.receive_data(more));
        guest.expect(op::CREDIT_REQUEST);
    }
    // Forwarded bytes make as much room as a larger buffer.
    let passed = PacketHeader { fwd_cnt: ROOM, ..guest.header(op::CREDIT_UPDATE, ports) };
    guest.send(passed, &[]);
    got.extend(guest.receive_data(data.len() - got.len()));
    assert!(got == data);
    guest.expect_silence();
}

#[test]
fn packet_that_waits_for_a_buffer_is_counted_as_one_wait() {
    let mut guest = TestGuest::with_buffers(&[4096], 0);
    guest.driver.wait_stalls("receive", 0);
    let _host = guest.call("CONNECT 1\n");
    guest.driver.wait_stalls("receive", 1);
    guest.post(1);
    guest.expect(op::REQUEST);
    guest.driver.wait_stalls("receive", 1);
}

#[test]
fn data_arrives_unchanged_however_it_is_split() {
    let mut guest = TestGuest::with_buffers(&[1, 42, 2, 7, 100], 8);
    let (mut host, ports) = guest.accept(1);
    let data = noise(2, 5000);
    host.write_all(&data).unwrap();
    assert!(guest.receive_data(data.len()) == data);
    let mut back = Vec::new();
    for (number, len) in [1, 2, 43, 44, 45, 100, 1000, 3000].into_iter().enumerate() {
        let payload = noise(number as u32, len);
        let header = PacketHeader { len: len as u32, ..guest.header(op::RW, ports) };
        guest.send_split(header, &payload, [1, 20, 43, 44, 45, 60, 1000, 5000][number]);
        back.extend(payload);
    }
    let mut got = vec![0; back.len()];
    host.read_exact(&mut got).unwrap();
    assert!(got == back);
}

#[test]
fn slow_host_loses_no_bytes() {
    let mut guest = TestGuest::new();
    let (mut host, ports) = guest.accept(1);
    let data = noise(3, 1 << 20);
    let sent = guest.fill(ports, &data);
    assert!((BUFFER as usize + 1..1 << 20).contains(&sent), "{sent}");
    let mut got = vec![0; sent];
    host.read_exact(&mut got).unwrap();
    assert!(got == data[..sent]);
    // The guest gets its credit back without asking.
    while sent - guest.expect(op::CREDIT_UPDATE).fwd_cnt as usize >= BUFFER as usize / 4 {}
}

#[test]
fn data_beyond_its_credit_ends_the_connection() {
    let mut guest = TestGuest::new();
    let (mut host, ports) = guest.accept(1);
    let data = noise(4, 1 << 20);
    guest.send_data(ports, &data[..BUFFER as usize + 1]);
    guest.expect(op::RST);
    assert_eq!(read_to_end(&mut host), b"");
    guest.send_data(ports, b"more");
    guest.expect(op::RST);
    guest.expect_silence();
}

#[test]
fn five_hundred_connections_move_data_at_once() {
    raise_descriptor_limit();
    let mut guest = TestGuest::new();
    let (mut all, mut echoed) = (0, 0);
    let mut clients: Vec<Vec<_>> = Vec::new();
    clients.resize_with(4, Vec::new);
    for number in 0..500 {
        let data = noise(number, 10_000 + 13 * number as usize);
        all += data.len();
        clients[number as usize % 4].push((guest.accept(number % 7).0, data));
    }
    let talk = |mut hosts: Vec<(UnixStream, Vec<u8>)>| {
        for (host, data) in &mut hosts {
            host.write_all(data).unwrap();
        }
        for (host, data) in &mut hosts {
            let mut back = vec![0; data.len()];
            host.read_exact(&mut back).unwrap();
            assert!(back == *data);
        }
    };
    let clients: Vec<_> = clients.into_iter().map(|hosts| std::thread::spawn(move || talk(hosts))).collect();
    while echoed < all {
        let (header, payload) = guest.receive();
        if header.op == op::RW {
            echoed += payload.len();
            guest.send_data((header.src_port, header.dst_port), &payload);
        } else {
            assert!(matches!(header.op, op::CREDIT_UPDATE | op::SHUTDOWN), "{header:?}");
        }
    }
    clients.into_iter().for_each(|client| limited("the client ends", || client.join()).unwrap());
}

// ---- Ends ----

#[test]
fn host_receives_after_it_has_shut_down_its_half() {
    let mut guest = TestGuest::new();
    let (mut host, ports) = guest.accept(1);
    host.write_all(b"last words").unwrap();
    host.shutdown(Shutdown::Write).unwrap();
    assert_eq!(guest.receive_data(10), b"last words");
    assert_eq!(guest.expect(op::SHUTDOWN).flags, shut::SEND);
    guest.send_data(ports, b"answer");
    let end = PacketHeader { flags: shut::BOTH, ..guest.header(op::SHUTDOWN, ports) };
    guest.send(end, &[]);
    guest.expect(op::RST);
    assert_eq!(read_to_end(&mut host), b"answer");
    guest.expect_silence();
}

#[test]
fn guest_receives_after_it_has_shut_down_its_half() {
    let mut guest = TestGuest::new();
    let (mut host, ports) = guest.accept(1);
    guest.send_data(ports, b"last words");
    let end = PacketHeader { flags: shut::SEND, ..guest.header(op::SHUTDOWN, ports) };
    guest.send(end, &[]);
    assert_eq!(read_to_end(&mut host), b"last words");
    host.write_all(b"answer").unwrap();
    drop(host);
    assert_eq!(guest.receive_data(6), b"answer");
    assert_ne!(guest.expect(op::SHUTDOWN).flags & shut::SEND, 0);
    guest.send_data(ports, b"data after its end");
    while guest.receive().0.op != op::RST {}
    guest.expect_silence();
}

#[test]
fn host_cannot_write_to_a_guest_that_has_shut_down_receiving() {
    let mut guest = TestGuest::new();
    let (mut host, ports) = guest.accept(1);
    let deaf = PacketHeader { flags: shut::RECEIVE, ..guest.header(op::SHUTDOWN, ports) };
    guest.send(deaf, &[]);
    guest.expect_silence();
    assert_eq!(host.write(b"?").unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
    guest.send_data(ports, b"but it talks");
    let mut talk = [0; 12];
    host.read_exact(&mut talk).unwrap();
    drop(host);
    assert_eq!(guest.expect(op::SHUTDOWN).flags, shut::BOTH);
}

#[test]
fn bytes_sent_before_the_guest_closed_reach_a_slow_host() {
    let mut guest = TestGuest::new();
    let (mut host, ports) = guest.accept(1);
    let data = noise(5, 1 << 20);
    let sent = guest.fill(ports, &data);
    let end = PacketHeader { flags: shut::BOTH, ..guest.header(op::SHUTDOWN, ports) };
    guest.send(end, &[]);
    // The guest does not wait, and uses the ports for another connection.
    guest.send_op(op::RST, ports);
    guest.expect_silence();
    assert!(read_to_end(&mut host) == data[..sent]);
    guest.send_data(ports, b"?");
    guest.expect(op::RST);
}

#[test]
fn connection_of_a_vanished_host_program_is_reset() {
    let mut guest = TestGuest::new();
    // Without bytes in flight.
    let (host, ports) = guest.accept(1);
    drop(host);
    assert_eq!(guest.expect(op::SHUTDOWN).flags, shut::BOTH);
    guest.send_op(op::RST, ports);
    // With bytes that the host has not read.
    let (host, ports) = guest.accept(1);
    guest.send_data(ports, b"unread");
    guest.expect_silence();
    drop(host);
    guest.expect(op::RST);
    // With bytes that the host has not read, and more that wait.
    let (host, ports) = guest.accept(1);
    guest.fill(ports, &noise(6, 1 << 20));
    drop(host);
    while guest.receive().0.op != op::RST {}
    // With unread bytes of the host, for which the guest has no credit and which it then declines.
    let (mut host, ports) = guest.accept(1);
    host.write_all(&noise(8, ROOM as usize + 1)).unwrap();
    guest.receive_data(ROOM as usize);
    guest.expect(op::CREDIT_REQUEST);
    drop(host);
    guest.send_data(ports, b"to nobody");
    while guest.receive().0.op != op::SHUTDOWN {}
    let deaf = PacketHeader { flags: shut::RECEIVE, ..guest.header(op::SHUTDOWN, ports) };
    guest.send(deaf, &[]);
    while guest.receive().0.op != op::RST {}
    // While the guest writes.
    let listener = guest.listen(80);
    let host = guest.connect(&listener, (80, 5));
    drop(host);
    assert_eq!(guest.expect(op::SHUTDOWN).flags, shut::BOTH);
    guest.send_data((80, 5), b"?");
    guest.send_op(op::RST, (80, 5));
    guest.expect_silence();
}

// ---- Pauses and snapshots ----

#[test]
fn pause_keeps_connections() {
    let mut guest = TestGuest::new();
    let (mut host, ports) = guest.accept(1);
    guest.driver.transport.halt();
    host.write_all(b"while it was paused").unwrap();
    let mut caller = guest.call("CONNECT 2\n");
    guest.driver.transport.resume().unwrap();
    let (mut data, mut request) = (Vec::new(), None);
    while data.len() < 19 || request.is_none() {
        let (header, payload) = guest.receive();
        data.extend(payload);
        request = request.or((header.op == op::REQUEST).then_some(header));
    }
    assert_eq!(data, b"while it was paused");
    guest.send_op(op::RESPONSE, (request.unwrap().src_port, 2));
    assert!(read_line(&mut caller).starts_with("OK "));
    guest.send_data(ports, b"on");
    let mut on = [0; 2];
    host.read_exact(&mut on).unwrap();
}

#[test]
fn reset_drops_all_connections() {
    let mut guest = TestGuest::new();
    let (mut host, _) = guest.accept(1);
    let mut caller = guest.call("CONN");
    guest.expect_silence();
    guest.driver.set(0x70, 0);
    assert_eq!((read_to_end(&mut host), caller.read(&mut [0]).unwrap_or(0)), (vec![], 0));
}

#[test]
fn restored_guest_gets_the_reset_event_and_connects_again() {
    for posted_before in [true, false] {
        let mut guest = TestGuest::new();
        let (mut host, ports) = guest.accept(1);
        if posted_before {
            guest.post_event();
        }
        let next = device(&guest.dir, "next", 77);
        guest.driver.move_to(next);
        // The old device has closed its end.
        assert_eq!(read_to_end(&mut host), b"");
        assert_eq!(guest.driver.get(0x100), 77);
        if !posted_before {
            let early = guest.header(op::RW, ports);
            guest.send(early, &[]);
            assert_eq!(guest.receive().0.op, op::RST, "the device continues until it can deliver the event");
            guest.post_event();
        }
        let event = guest.driver.wait(EVENT);
        assert_eq!((event.len, event.written), (4, vec![0; 4]));
        let mut caller = UnixStream::connect(guest.dir.join("next")).unwrap();
        caller.write_all(b"CONNECT 1\n").unwrap();
        // Packets of the guest wait while it handles the event.
        let asked = PacketHeader { src_cid: 77, ..guest.header(op::CREDIT_REQUEST, (9, 9)) };
        guest.send(asked, &[]);
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(guest.driver.poll(RX), None);
        guest.post_event();
        guest.cid = 77;
        assert_eq!(guest.expect(op::RST).src_port, 9);
        let request = guest.expect(op::REQUEST);
        guest.send_op(op::RESPONSE, (request.src_port, 1));
        assert_eq!(read_line(&mut caller), format!("OK {}\n", request.src_port));
        assert_eq!((request.dst_cid, request.socket_type), (77, STREAM));
        assert_eq!(guest.driver.poll(EVENT), None, "the event is delivered once");
    }
}

#[test]
fn undelivered_event_is_delivered_in_the_next_process() {
    let mut guest = TestGuest::new();
    for name in ["second", "third"] {
        let next = device(&guest.dir, name, CID);
        guest.driver.move_to(next);
    }
    guest.post_event();
    assert_eq!(guest.driver.wait(EVENT).len, 4);
    // The device does not wait forever for a guest that posts no buffer again.
    guest.send_op(op::RW, (1, 1));
    guest.expect(op::RST);
}
