//! The begin and the end of connections.

use std::time::Duration;

use smoltcp::socket::tcp::State;

use super::super::connection::{GOODBYE, HALF_CLOSED, IDLE, IDLE_OPAQUE, OPENING};
use super::super::end::{BufferSizes, TcpChecksum, TcpEnd};
use super::super::frame::frame_of;
use super::super::requests::HEAD_PATIENCE;
use super::bench::{Bench, GUEST_MAC, ROUTER_MAC, V4, V6, connecting, ends_of, get};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn guest_is_connected_once_the_far_side_is() {
    let mut bench = Bench::new(V4);
    bench.is_far_silent = true;
    bench.pass(5 * SECOND);
    assert_eq!((bench.guest.state(), bench.guest_wire.sent.len()), (State::SynSent, 3));
    assert!(bench.far_wire.sent.len() >= 2 && bench.is_known(), "the relay asks the far side again");
    bench.is_far_silent = false;
    bench.pass(5 * SECOND);
    assert_eq!((bench.guest.state(), bench.server.state()), (State::Established, State::Established));
}

#[test]
fn refusal_of_the_far_side_reaches_the_guest() {
    for family in [V4, V6] {
        let mut bench = Bench::new(family);
        // A closed socket answers by a reset.
        bench.server.end.socket_mut().abort();
        bench.settle();
        assert!(bench.guest.end.is_reset() && !bench.is_known());
    }
}

#[test]
fn silence_of_the_far_side_ends_in_a_reset_of_the_guest() {
    let mut bench = Bench::new(V4);
    bench.is_far_silent = true;
    bench.pass(OPENING - SECOND);
    assert_eq!(bench.guest.state(), State::SynSent);
    bench.pass(2 * SECOND);
    assert!(bench.guest.end.is_reset() && !bench.is_known());
}

#[test]
fn reset_of_one_side_reaches_the_other() {
    let mut bench = Bench::connected();
    bench.send(get("a.test").as_bytes());
    bench.server.end.socket_mut().abort();
    bench.settle();
    assert!(bench.guest.end.is_reset() && !bench.is_known());
    let mut bench = Bench::connected();
    bench.guest.end.socket_mut().abort();
    bench.settle();
    assert!(bench.server.end.is_reset() && !bench.is_known());
    // A guest that gives up before it is connected.
    let mut bench = Bench::new(V4);
    bench.is_far_silent = true;
    bench.settle();
    bench.guest.end.socket_mut().abort();
    bench.settle();
    assert!(bench.far_wire.has_reset() && !bench.is_known());
}

#[test]
fn half_closed_connection_carries_the_response() {
    let mut bench = Bench::connected();
    bench.guest.ends = true;
    bench.send(get("a.test").as_bytes());
    assert_eq!((bench.requests(), bench.server.state()), (get("a.test"), State::CloseWait));
    bench.answer(b"late");
    assert_eq!((bench.responses().as_str(), bench.guest.state()), ("late", State::FinWait2));
    bench.server.ends = true;
    bench.answer(b"last");
    assert_eq!((bench.responses().as_str(), bench.guest.state()), ("last", State::TimeWait));
    assert!(!bench.guest_wire.has_reset() && !bench.far_wire.has_reset());
}

#[test]
fn far_side_that_ends_first_ends_the_guest_behind_its_last_byte() {
    let mut bench = Bench::connected();
    bench.server.ends = true;
    bench.guest.reads = false;
    bench.answer(&vec![b'x'; 200_000]);
    assert_eq!(bench.guest.state(), State::Established);
    bench.guest.reads = true;
    bench.pass(2 * SECOND);
    assert_eq!((bench.guest.state(), bench.responses().len()), (State::CloseWait, 200_000));
    bench.guest.ends = true;
    bench.settle();
    assert_eq!((bench.guest.state(), bench.server.state()), (State::Closed, State::TimeWait));
}

#[test]
fn guest_that_ends_in_a_head_or_a_body_ends_the_connection() {
    for (sent, passed) in [
        ("GET / HTTP/1.1\r\nHost: a.test\r\n", ""),
        ("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3\r\n\r\nab", "all"),
        ("POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", "all"),
    ] {
        let mut bench = Bench::connected();
        bench.guest.ends = true;
        bench.send(sent.as_bytes());
        let expected = if passed.is_empty() { "" } else { sent };
        assert_eq!(bench.requests(), expected);
        assert!(bench.server.end.is_reset() && !bench.guest.end.is_reset());
        assert_eq!(bench.guest.state(), State::TimeWait);
    }
}

#[test]
fn half_a_head_times_out() {
    let mut bench = Bench::connected();
    bench.pass(2 * HEAD_PATIENCE);
    bench.send(b"GET / HTTP/1.1\r\n");
    bench.pass(HEAD_PATIENCE / 2);
    bench.send(b"Host: a.test\r\n");
    bench.pass(HEAD_PATIENCE / 2 - SECOND);
    assert_eq!(bench.server.state(), State::Established);
    bench.pass(2 * SECOND);
    assert_eq!((bench.requests().as_str(), bench.guest.state()), ("", State::CloseWait));
    assert!(bench.server.end.is_reset() && bench.is_known(), "the guest has not ended its end");
    bench.pass(GOODBYE);
    assert!(bench.guest.end.is_reset() && !bench.is_known());
}

#[test]
fn idle_connections_end() {
    let mut bench = Bench::connected();
    bench.send(get("a.test").as_bytes());
    bench.pass(IDLE / 2);
    bench.answer(b"x");
    bench.pass(IDLE - SECOND);
    assert_eq!(bench.guest.state(), State::Established);
    bench.pass(2 * SECOND);
    assert!(bench.server.end.is_reset() && bench.guest.state() == State::CloseWait);

    let mut bench = Bench::connected();
    bench.send(b"GET / HTTP/1.1\r\nHost: a.test\r\nUpgrade: websocket\r\n\r\n");
    bench.answer(b"HTTP/1.1 101 OK\r\n\r\n");
    bench.pass(IDLE_OPAQUE - SECOND);
    assert_eq!(bench.guest.state(), State::Established);
    bench.pass(2 * SECOND);
    assert!(bench.server.end.is_reset());

    let mut bench = Bench::connected();
    bench.pass(IDLE / 2);
    bench.server.ends = true;
    bench.pass(HALF_CLOSED - SECOND);
    assert!(!bench.server.end.is_reset() && bench.guest.state() == State::CloseWait);
    bench.pass(2 * SECOND + GOODBYE);
    assert!(bench.server.end.is_reset() && bench.guest.end.is_reset() && !bench.is_known());
}

#[test]
fn guest_may_pause_before_the_last_bytes() {
    let mut bench = Bench::connected();
    (bench.server.ends, bench.guest.reads) = (true, false);
    bench.answer(&vec![b'x'; 100_000]);
    bench.pass(2 * HALF_CLOSED);
    assert_eq!(bench.server.state(), State::FinWait2);
    bench.guest.reads = true;
    bench.pass(HALF_CLOSED - SECOND);
    assert_eq!((bench.guest.state(), bench.responses().len()), (State::CloseWait, 100_000));
    bench.guest.ends = true;
    bench.settle();
    assert_eq!((bench.guest.state(), bench.server.state()), (State::Closed, State::TimeWait));
}

#[test]
fn reset_forgets_all_connections() {
    let mut bench = Bench::connected();
    bench.guest.unsent.extend(get("a.test").bytes());
    bench.relays.reset();
    assert!(!bench.is_known());
    bench.settle();
    assert_eq!((bench.requests().as_str(), bench.counts().opened), ("", 1));
    assert_eq!((bench.relays.next_to_guest(), bench.relays.next_to_far()), (None, None));
    assert_eq!(bench.relays.next_work(bench.now), None);
}

#[test]
fn same_ends_are_used_again_after_the_end() {
    let mut bench = Bench::connected();
    bench.server.ends = true;
    bench.settle();
    bench.guest.ends = true;
    bench.settle();
    assert_eq!(bench.guest.state(), State::Closed);
    assert!(bench.is_known(), "late packets are answered");
    let mut again = Bench::new(V4);
    std::mem::swap(&mut again.relays, &mut bench.relays);
    again.send(get("b.test").as_bytes());
    assert_eq!((again.requests(), again.counts().opened), (get("b.test"), 2));
}

#[test]
fn damaged_segments_are_dropped_if_their_checksum_counts() {
    let ends = ends_of(V6, 4000);
    let mut bench = Bench::new(V6);
    let mut syn = connecting(ends, bench.now);
    syn.work(bench.now);
    let packet = syn.next_packet().unwrap();
    for (checksum, is_known) in [(TcpChecksum::Verified, false), (TcpChecksum::Trusted, true)] {
        let mut frame = frame_of(&packet, (GUEST_MAC, ROUTER_MAC), ends.0.0);
        frame[14 + 40 + 16] ^= 1;
        assert!(bench.give(&frame, checksum));
        assert_eq!(bench.is_known(), is_known, "{checksum:?}");
    }
    let sizes = BufferSizes { receive: 100, send: 100 };
    let mut end = TcpEnd::listening(ends.1, sizes, 1500, 1, bench.now).unwrap();
    for at in 0..packet.len() {
        let mut damaged = packet.clone();
        damaged[at] ^= 4;
        // Traffic class, flow label and hop limit are under no checksum.
        let is_covered = !matches!(at, 0..4 | 7);
        assert!(!is_covered || !end.receive(&damaged, TcpChecksum::Verified, bench.now), "{at}");
        assert!(!end.receive(&packet[..at], TcpChecksum::Trusted, bench.now));
    }
    assert!(!end.has_waiting() && end.receive(&packet, TcpChecksum::Verified, bench.now));
    assert!(end.has_waiting());
}
