//! Questions and answers of names.

use domain::base::{MessageBuilder, Name as WireName, Ttl};
use domain::rdata::{A, Aaaa, Cname, Txt};

use super::super::question::question;
use super::*;

const ONLY_EXAMPLE: &str = r#"{"default":"deny","allow":["*.example.org:443","10.1.0.0/16"]}"#;

fn judge(text: &str) -> Judge {
    let host: IpAddr = "198.51.100.7".parse().unwrap();
    Judge::new(&serde_json::from_str(text).unwrap(), [host.into()]).unwrap()
}

fn wire(name: &str) -> WireName<Vec<u8>> {
    name.parse().unwrap()
}

/// A record for an upstream answer.
enum R {
    A(&'static str, &'static str, u32),
    Aaaa(&'static str, &'static str),
    Cname(&'static str, &'static str),
    Txt(&'static str),
}

fn upstream(name: &str, kind: Rtype, rcode: Rcode, records: &[R]) -> Vec<u8> {
    let mut message = MessageBuilder::new_vec();
    message.header_mut().set_qr(true);
    message.header_mut().set_rcode(rcode);
    let mut question = message.question();
    question.push((wire(name), kind)).unwrap();
    let mut answer = question.answer();
    for record in records {
        let ttl = Ttl::from_secs(60);
        match record {
            R::A(name, address, ttl) => {
                answer.push((wire(name), *ttl, A::new(address.parse().unwrap()))).unwrap();
            }
            R::Aaaa(name, address) => {
                answer.push((wire(name), ttl, Aaaa::new(address.parse().unwrap()))).unwrap();
            }
            R::Cname(name, to) => answer.push((wire(name), ttl, Cname::new(wire(to)))).unwrap(),
            R::Txt(name) => {
                answer.push((wire(name), ttl, Txt::<Vec<u8>>::build_from_slice(b"text").unwrap())).unwrap();
            }
        }
    }
    answer.finish()
}

/// Asks for a name and answers with these records.
fn answered(name: &str, kind: Rtype, upstream: &[u8]) -> Answered<()> {
    let (mut desk, judge) = (Desk::default(), judge(ONLY_EXAMPLE));
    let labels: Vec<_> = name.split('.').map(str::as_bytes).collect();
    let asked = question(&labels, kind.to_int(), Some(1232));
    let Reply::Ask(ask) = desk.take(&asked, (), &judge, Instant::now()) else { panic!("{name}") };
    let answered = desk.answered(ask.number, Some(upstream), &judge).unwrap();
    assert_eq!(desk.answered(ask.number, Some(upstream), &judge), None, "it is answered once");
    answered
}

fn rcode(message: &[u8]) -> Rcode {
    domain::base::Message::from_slice(message).unwrap().header().rcode()
}

fn count(message: &[u8]) -> u16 {
    domain::base::Message::from_slice(message).unwrap().header_counts().ancount()
}

#[test]
fn denied_name_does_not_exist_and_goes_nowhere() {
    let (mut desk, judge) = (Desk::default(), judge(ONLY_EXAMPLE));
    for labels in [&[b"example".as_slice(), b"org"][..], &[b"secret-data", b"attacker", b"test"]] {
        let Reply::Denied(message, _, reason) =
            desk.take(&question(labels, 1, None), (), &judge, Instant::now())
        else {
            panic!("{labels:?}")
        };
        assert_eq!((rcode(&message), reason), (Rcode::NXDOMAIN, Reason::Default));
    }
    assert_eq!(desk.waiting(), 0);
}

#[test]
fn types_that_would_go_around_the_pins_have_no_records() {
    let (mut desk, judge) = (Desk::default(), judge(ONLY_EXAMPLE));
    for (kind, expected) in
        [(65, Rcode::NOERROR), (64, Rcode::NOERROR), (255, Rcode::NOTIMP), (252, Rcode::NOTIMP)]
    {
        let asked = question(&[b"www", b"example", b"org"], kind, None);
        let Reply::Now(message) = desk.take(&asked, (), &judge, Instant::now()) else { panic!("{kind}") };
        assert_eq!((rcode(&message), count(&message)), (expected, 0), "{kind}");
    }
}

#[test]
fn question_goes_upstream_in_lower_case_and_its_addresses_come_back() {
    let (mut desk, judge) = (Desk::default(), judge(ONLY_EXAMPLE));
    let asked = question(&[b"WWW", b"eXample", b"org"], 1, None);
    let Reply::Ask(ask) = desk.take(&asked, 7, &judge, Instant::now()) else { panic!() };
    assert_eq!((ask.name.as_str(), ask.kind), ("www.example.org", 1));
    let from_server = upstream(
        "www.example.org",
        Rtype::A,
        Rcode::NOERROR,
        &[
            R::Cname("www.example.org", "cdn.example.net"),
            R::Cname("cdn.example.net", "a.cdn.example.net"),
            R::A("a.cdn.example.net", "192.0.2.1", 30),
            R::A("a.cdn.example.net", "192.0.2.2", 1_000_000),
            R::A("unrelated.example.net", "192.0.2.3", 60),
            R::Txt("a.cdn.example.net"),
        ],
    );
    let answered = desk.answered(ask.number, Some(&from_server), &judge).unwrap();
    assert_eq!((answered.asker, answered.problem, &answered.truncated), (7, None, &None));
    let addresses = ["192.0.2.1", "192.0.2.2"].map(|address| address.parse().unwrap());
    assert_eq!(answered.addresses, [(addresses[0], 30), (addresses[1], 3600)]);
    assert_eq!(count(&answered.message), 4, "two names and two addresses");
    assert_eq!(answered.message[12..33], asked[12..33], "the guest's own letters");
}

#[test]
fn addresses_of_closed_ranges_are_left_out() {
    let closed = ["127.0.0.1", "10.2.0.1", "169.254.169.254", "198.51.100.7"];
    let records: Vec<_> = closed.map(|address| R::A("x.example.org", address, 60)).into_iter().collect();
    let answer =
        answered("x.example.org", Rtype::A, &upstream("x.example.org", Rtype::A, Rcode::NOERROR, &records));
    assert_eq!((count(&answer.message), answer.addresses.len(), answer.problem), (0, 0, None));
    // A network of the policy opens a part of a range.
    let records = [R::A("x.example.org", "10.1.0.1", 60)];
    let answer =
        answered("x.example.org", Rtype::A, &upstream("x.example.org", Rtype::A, Rcode::NOERROR, &records));
    assert_eq!(answer.addresses.len(), 1);
    let records = [R::Aaaa("x.example.org", "64:ff9b::7f00:1"), R::Aaaa("x.example.org", "2001:db8::1")];
    let from_server = upstream("x.example.org", Rtype::AAAA, Rcode::NOERROR, &records);
    let answer = answered("x.example.org", Rtype::AAAA, &from_server);
    assert_eq!(answer.addresses, [("2001:db8::1".parse().unwrap(), 60)], "NAT64 of a loopback address");
}

#[test]
fn answer_that_lies_or_is_broken_is_a_failure() {
    let good =
        || upstream("x.example.org", Rtype::A, Rcode::NOERROR, &[R::A("x.example.org", "192.0.2.1", 60)]);
    let with = |at: usize, byte: u8| {
        let mut bytes = good();
        bytes[at] = byte;
        bytes
    };
    let many: Vec<_> = (0..600).map(|_| R::A("x.example.org", "192.0.2.1", 60)).collect();
    for (from_server, problem) in [
        (good()[..good().len() - 1].to_vec(), "a record is malformed"),
        (good()[..20].to_vec(), "it has no question"),
        (vec![0; 11], "it is too short"),
        (with(2, 0), "it is no whole answer"),
        (with(2, 0x82), "it is no whole answer"),
        (with(3, 2), "the server failed"),
        (with(3, 5), "the server failed"),
        (with(7, 2), "a record is malformed"),
        (upstream("y.example.org", Rtype::A, Rcode::NOERROR, &[]), "it answers another question"),
        (upstream("x.example.org", Rtype::AAAA, Rcode::NOERROR, &[]), "it answers another question"),
        (
            upstream(
                "x.example.org",
                Rtype::A,
                Rcode::NOERROR,
                &[R::Cname("x.example.org", "y.example.org"), R::Cname("y.example.org", "x.example.org")],
            ),
            "its chain of names is too long, or a loop",
        ),
        (upstream("x.example.org", Rtype::A, Rcode::NOERROR, &many), "it has too many records"),
    ] {
        let answer = answered("x.example.org", Rtype::A, &from_server);
        assert_eq!((answer.problem, rcode(&answer.message)), (Some(problem), Rcode::SERVFAIL));
        assert!(answer.addresses.is_empty());
    }
}

#[test]
fn name_that_does_not_exist_is_told_so() {
    let from_server = upstream("x.example.org", Rtype::A, Rcode::NXDOMAIN, &[]);
    let answer = answered("x.example.org", Rtype::A, &from_server);
    assert_eq!((rcode(&answer.message), answer.problem), (Rcode::NXDOMAIN, None));
    let text = upstream("x.example.org", Rtype::TXT, Rcode::NOERROR, &[R::Txt("x.example.org")]);
    assert_eq!(count(&answered("x.example.org", Rtype::TXT, &text).message), 1);
}

#[test]
fn long_answer_is_cut_over_udp() {
    let records: Vec<_> = (0..120).map(|_| R::A("x.example.org", "192.0.2.1", 60)).collect();
    let from_server = upstream("x.example.org", Rtype::A, Rcode::NOERROR, &records);
    let answer = answered("x.example.org", Rtype::A, &from_server);
    let truncated = answer.truncated.unwrap();
    assert!(answer.message.len() > 1232 && truncated.len() < 100);
    assert_eq!((truncated[2] & 2, count(&truncated), count(&answer.message)), (2, 0, 120));
}

#[test]
fn flood_of_questions_is_bounded_and_a_silent_resolver_is_given_up() {
    let (mut desk, judge, start) = (Desk::default(), judge(ONLY_EXAMPLE), Instant::now());
    let mut ask = |number: usize, now: Instant| {
        let label = format!("n{number}");
        let asked = question(&[label.as_bytes(), b"example", b"org"], 1, None);
        desk.take(&asked, (), &judge, now)
    };
    let taken = (0..1000).filter(|number| matches!(ask(*number, start), Reply::Ask(_))).count();
    assert_eq!(taken, MOST_WAITING);
    assert_eq!(ask(0, start), Reply::Nothing);
    assert!(matches!(ask(0, start + PATIENCE), Reply::Ask(_)));
    assert_eq!(desk.waiting(), 1);
    let failed = desk.fail_all(&judge);
    assert_eq!((failed.len(), rcode(&failed[0].message)), (1, Rcode::SERVFAIL));
}

proptest::proptest! {
    #[test]
    fn any_answer_is_read_without_a_panic(
        bytes in proptest::collection::vec(0..=255_u8, 0..300),
        at in 0..80_usize,
    ) {
        let mut from_server =
            upstream("x.example.org", Rtype::A, Rcode::NOERROR, &[R::A("x.example.org", "192.0.2.1", 60)]);
        from_server.splice(at.min(from_server.len()).., bytes);
        let _ = answered("x.example.org", Rtype::A, &from_server);
    }
}
