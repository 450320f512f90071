//! Requests and responses.

use smoltcp::socket::tcp::State;

use super::super::RelayCounts;
use super::bench::{Bench, V4, V6, get};

const RESPONSE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";

#[test]
fn request_and_response_pass_over_both_families() {
    for family in [V4, V6] {
        let mut bench = Bench::new(family);
        bench.send(get("a.test").as_bytes());
        assert_eq!((bench.requests(), bench.judged.as_slice()), (get("a.test"), &["a.test".to_owned()][..]));
        bench.answer(RESPONSE.as_bytes());
        assert_eq!(bench.responses(), RESPONSE);
        bench.guest.ends = true;
        bench.settle();
        assert_eq!(bench.server.state(), State::CloseWait);
        bench.server.ends = true;
        bench.settle();
        assert_eq!((bench.guest.state(), bench.server.state()), (State::TimeWait, State::Closed));
        assert!(!bench.guest_wire.has_reset() && !bench.far_wire.has_reset());
        assert_eq!(bench.counts(), RelayCounts { opened: 1, ..RelayCounts::default() });
        bench.pass(std::time::Duration::from_secs(30));
        assert!(!bench.is_known());
    }
}

#[test]
fn denied_first_request_gets_an_answer_and_never_passes() {
    let mut bench = Bench::connected();
    bench.send(get("denied.test").as_bytes());
    let answer = bench.responses();
    assert!(answer.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{answer}");
    assert!(
        answer.contains("\r\nConnection: close\r\n") && answer.ends_with("\r\n\r\nrule 7 denies this host\n")
    );
    assert_eq!((bench.requests().as_str(), bench.server.state()), ("", State::Closed));
    assert_eq!(bench.guest.state(), State::CloseWait);
    assert!(bench.far_wire.has_reset() && !bench.guest_wire.has_reset());
    // Later bytes of the guest go nowhere.
    bench.send(get("a.test").as_bytes());
    bench.guest.ends = true;
    bench.settle();
    assert_eq!((bench.requests().as_str(), bench.guest.state()), ("", State::Closed));
    assert_eq!(bench.counts(), RelayCounts { opened: 1, denied: 1, ..RelayCounts::default() });
}

#[test]
fn denied_later_request_ends_the_connection_without_an_answer() {
    let mut bench = Bench::connected();
    bench.send(get("a.test").as_bytes());
    bench.answer(RESPONSE.as_bytes());
    bench.send(get("b.test").as_bytes());
    bench.answer(RESPONSE.as_bytes());
    bench.send(get("denied.test").as_bytes());
    assert_eq!(bench.judged, ["a.test", "b.test", "denied.test"]);
    assert_eq!(bench.requests(), get("a.test") + &get("b.test"));
    assert_eq!(bench.responses(), RESPONSE.repeat(2));
    assert_eq!((bench.guest.state(), bench.server.state()), (State::CloseWait, State::Closed));
    assert!(bench.far_wire.has_reset());
}

#[test]
fn pipelined_requests_are_judged_one_by_one() {
    let mut bench = Bench::connected();
    let allowed = get("a.test") + &get("b.test") + &get("c.test");
    bench.send((allowed.clone() + &get("denied.test") + &get("d.test")).as_bytes());
    assert_eq!(bench.requests(), allowed);
    assert_eq!(bench.judged, ["a.test", "b.test", "c.test", "denied.test"]);
    assert_eq!(bench.responses(), "");
    assert_eq!((bench.guest.state(), bench.server.state()), (State::CloseWait, State::Closed));
}

#[test]
fn bodies_pass_and_their_content_is_no_request() {
    let inner = get("denied.test");
    let by_length =
        format!("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: {}\r\n\r\n{inner}", inner.len());
    let by_chunks = format!(
        "POST / HTTP/1.1\r\nHost: b.test\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{inner}\r\n0\r\n\r\n",
        inner.len()
    );
    let sent = by_length + &by_chunks + &get("c.test");
    for step in [1, sent.len()] {
        let mut bench = Bench::connected();
        for piece in sent.as_bytes().chunks(step) {
            bench.send(piece);
        }
        assert_eq!(bench.requests(), sent);
        assert_eq!(bench.judged, ["a.test", "b.test", "c.test"]);
    }
}

#[test]
fn request_behind_a_body_is_judged() {
    for body in ["Content-Length: 3\r\n\r\nabc", "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"] {
        let post = format!("POST / HTTP/1.1\r\nHost: a.test\r\n{body}");
        let mut bench = Bench::connected();
        bench.send((post.clone() + &get("denied.test")).as_bytes());
        assert_eq!((bench.requests(), bench.server.state()), (post, State::Closed));
    }
}

#[test]
fn malformed_chunks_end_the_connection() {
    for chunks in ["3;x=y\r\nabc\r\n", "3\nabc\r\n", "0\r\nHost: b.test\r\n\r\n"] {
        let mut bench = Bench::connected();
        let head = "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n";
        bench.send((head.to_owned() + chunks).as_bytes());
        assert_eq!((bench.requests().as_str(), bench.server.state()), (head, State::Closed));
        assert_eq!((bench.responses().as_str(), bench.counts().ambiguous), ("", 1));
    }
}

#[test]
fn request_for_another_protocol_passes_without_it() {
    for upgrade in ["h2c", "TLS/1.2", "connect-udp"] {
        let request = format!(
            "GET / HTTP/1.1\r\nUpgrade: {upgrade}\r\nHost: a.test\r\nHTTP2-Settings: AA\r\nX: y\r\n\r\n"
        );
        for step in [1, request.len()] {
            let mut bench = Bench::connected();
            for piece in (request.clone() + &get("b.test") + &get("denied.test")).as_bytes().chunks(step) {
                bench.send(piece);
            }
            let passed = "GET / HTTP/1.1\r\nHost: a.test\r\nX: y\r\n\r\n".to_owned() + &get("b.test");
            assert_eq!(bench.requests(), passed);
        }
    }
}

#[test]
fn ambiguous_requests_get_an_answer_and_never_pass() {
    for request in [
        "CONNECT a.test:443 HTTP/1.1\r\nHost: a.test\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.test\r\nHost: b.test\r\n\r\n",
        "GET / HTTP/1.1\nHost: a.test\n\n",
        "\r\nGET / HTTP/1.1\r\nHost: a.test\r\n\r\n",
        "\r\n\r\nGET / HTTP/1.1\nHost: a.test\n\n",
        "\nGET / HTTP/1.1\r\nHost: a.test\r\n\r\n",
    ] {
        for step in [1, request.len()] {
            let mut bench = Bench::connected();
            for piece in request.as_bytes().chunks(step) {
                bench.send(piece);
            }
            let answer = bench.responses();
            assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{request:?}: {answer}");
            assert_eq!((bench.requests().as_str(), bench.server.state()), ("", State::Closed));
            assert_eq!(bench.guest.state(), State::CloseWait);
            assert_eq!((bench.counts().ambiguous, bench.judged.len()), (1, 0));
        }
    }
}

#[test]
fn longest_head_passes_and_a_longer_one_is_refused() {
    for (len, passes) in [(16 << 10, true), ((16 << 10) + 1, false)] {
        let mut bench = Bench::connected();
        let start = "GET / HTTP/1.1\r\nHost: a.test\r\nX: ";
        let request = format!("{start}{}\r\n\r\n", "a".repeat(len - start.len() - 4));
        bench.send(request.as_bytes());
        assert_eq!(bench.requests() == request, passes);
        assert_eq!(bench.responses().is_empty(), passes);
    }
}
