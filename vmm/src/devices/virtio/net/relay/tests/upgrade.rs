//! Requests for another protocol.

use smoltcp::socket::tcp::State;

use super::super::responses::LONGEST_RESPONSE_HEAD;
use super::bench::{Bench, get};

const UPGRADE: &str =
    "GET /chat HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
const SWITCHING: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n";

#[test]
fn bytes_behind_a_granted_upgrade_pass_both_ways() {
    let mut bench = Bench::connected();
    bench.send((UPGRADE.to_owned() + "\u{1}early\n").as_bytes());
    assert_eq!(bench.requests(), UPGRADE, "held");
    bench.answer(b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 101 Switching");
    assert_eq!(bench.requests(), "");
    bench.answer(&SWITCHING.as_bytes()["HTTP/1.1 101 Switching".len()..]);
    assert_eq!(bench.requests(), "\u{1}early\n");
    assert_eq!(bench.responses(), format!("HTTP/1.1 103 Early Hints\r\n\r\n{SWITCHING}"));
    let denied = get("denied.test");
    bench.send(denied.as_bytes());
    bench.answer(b"\0\n\xc2\x80");
    assert_eq!((bench.requests(), bench.responses().as_str()), (denied, "\0\n\u{80}"));
    assert_eq!(bench.judged, ["a.test"]);
    bench.guest.ends = true;
    bench.settle();
    assert_eq!(bench.server.state(), State::CloseWait);
}

#[test]
fn requests_behind_a_refused_upgrade_are_judged() {
    let mut bench = Bench::connected();
    bench.send((UPGRADE.to_owned() + &get("b.test")).as_bytes());
    assert_eq!(bench.requests(), UPGRADE, "held");
    let response = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 74\r\n\r\n";
    // The content of a response grants nothing.
    bench.answer((response.to_owned() + SWITCHING).as_bytes());
    assert_eq!(bench.responses(), response.to_owned() + SWITCHING);
    assert_eq!((bench.requests(), bench.judged.len()), (get("b.test"), 2));
    bench.send(get("denied.test").as_bytes());
    assert_eq!((bench.requests().as_str(), bench.server.state()), ("", State::Closed));
}

#[test]
fn upgrade_of_a_later_request_is_refused() {
    let mut bench = Bench::connected();
    bench.send((get("a.test") + UPGRADE).as_bytes());
    assert_eq!((bench.requests(), bench.server.state()), (get("a.test"), State::Closed));
    assert_eq!(bench.counts().ambiguous, 1);
}

#[test]
fn upgrade_without_a_whole_answer_ends_the_connection() {
    let long = format!("HTTP/1.1 101 OK\r\nX: {}", "a".repeat(LONGEST_RESPONSE_HEAD));
    for answer in ["SSH-2.0-server\r\n", long.as_str()] {
        let mut bench = Bench::connected();
        bench.send(UPGRADE.as_bytes());
        bench.answer(answer.as_bytes());
        assert_eq!((bench.guest.state(), bench.server.state()), (State::CloseWait, State::Closed));
    }
    let mut bench = Bench::connected();
    bench.send(UPGRADE.as_bytes());
    bench.server.ends = true;
    bench.answer(b"HTTP/1.1 101 Swi");
    assert_eq!(bench.guest.state(), State::CloseWait);
}
