//! Fuzzes the readers of names: questions of a guest, answers of servers, first messages of TLS, and heads of
//! HTTP.
#![no_main]

use std::net::IpAddr;
use std::time::Instant;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use volt_vmm::policy::{
    Desk, HeadStart, HelloStart, Judge, LONGEST_HEAD, Name, Reply, look, query, read_head, read_hello,
};

#[derive(Debug, Arbitrary)]
enum Input {
    /// Any message of a guest.
    Question(Vec<u8>),
    /// The answer to a good question, from a byte of it on.
    Answer {
        at: u8,
        bytes: Vec<u8>,
    },
    /// The first bytes of a stream, and one of their lengths.
    Hello(Vec<u8>, u16),
    Head(Vec<u8>, u16),
    /// Words of a head.
    Words(Vec<u8>),
}

const WORDS: [&str; 16] = [
    "GET / HTTP/1.1\r\n",
    "POST http://a.example.org/ HTTP/1.1\r\n",
    "Host: a.example.org\r\n",
    "Host: 192.0.2.1:80\r\n",
    "Content-Length: 3\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Upgrade: websocket\r\n",
    "Upgrade: h2c\r\n",
    "HTTP2-Settings: A\r\n",
    "Connection: close\r\n",
    "\r\n",
    "\n",
    "\r",
    " ",
    "x: y\r\n",
    ":",
];

fn judge() -> Judge {
    let policy = r#"{"default":"deny","allow":["*.example.org"]}"#;
    Judge::new(&serde_json::from_str(policy).expect("a policy"), []).expect("a policy")
}

/// A verdict that falls stays, however many bytes follow.
fn check_head(bytes: &[u8], len: usize) {
    let whole = read_head(bytes);
    match read_head(&bytes[..len.min(bytes.len())]) {
        HeadStart::Partial => {}
        HeadStart::Refused(_) => assert!(matches!(whole, HeadStart::Refused(_)), "{whole:?}"),
        first @ HeadStart::Whole(..) => assert_eq!(first, whole),
    }
    if let HeadStart::Whole(head, len) = whole {
        assert!(len <= LONGEST_HEAD.min(bytes.len()) && bytes[..len].ends_with(b"\r\n\r\n"));
        let mut from = 0;
        for line in head.left_out {
            assert!(from <= line.start && line.end < len && bytes[line.clone()].ends_with(b"\r\n"));
            from = line.end;
        }
    }
}

fuzz_target!(|input: Input| match input {
    Input::Question(bytes) => {
        let (mut desk, judge) = (Desk::default(), judge());
        if let Reply::Ask(ask) = desk.take(&bytes, (), &judge, Instant::now()) {
            assert!(ask.name.as_str().ends_with(".example.org"), "{ask:?} goes upstream");
            desk.answered(ask.number, None, &judge).expect("it waits");
        }
    }
    Input::Answer { at, bytes } => {
        let (mut desk, judge) = (Desk::default(), judge());
        let name = Name::parse("a.example.org").expect("a name");
        let asked = query(7, &name, 1).expect("a question");
        let Reply::Ask(ask) = desk.take(&asked, (), &judge, Instant::now()) else { panic!("it is allowed") };
        let mut message = asked.clone();
        message[2] |= 0x80;
        message.splice(usize::from(at).min(message.len()).., bytes);
        let _ = look(&asked, &message);
        let answered = desk.answered(ask.number, Some(&message), &judge).expect("it waits");
        assert!(answered.message.len() <= usize::from(u16::MAX));
        assert!(answered.addresses.iter().all(|(address, _)| !judge.is_closed(*address)));
        assert!(answered.addresses.iter().all(|(address, _)| !IpAddr::is_loopback(address)));
    }
    Input::Hello(bytes, len) => {
        let whole = read_hello(&bytes);
        match read_hello(&bytes[..usize::from(len).min(bytes.len())]) {
            HelloStart::Partial => {}
            first => assert_eq!(first, whole),
        }
    }
    Input::Head(bytes, len) => check_head(&bytes, len.into()),
    Input::Words(words) => {
        let text: Vec<u8> = words.iter().flat_map(|word| WORDS[usize::from(*word) % 16].bytes()).collect();
        (0..text.len().min(200)).for_each(|len| check_head(&text, len));
    }
});
