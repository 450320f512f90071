//! Segments that the guest sends again, in whole or in part, and parts that the device acknowledges.

use std::time::Duration;

use proptest::prelude::*;

use super::held_tests::{ONLY, RETRY, SERVER, START, US, Wire, at, frame, hello, parsed};
use super::*;
use crate::hold::Copied;

#[test]
fn repetition_with_another_name_never_leaves() {
    let (good, bad) = (hello("www.example.org"), hello("www.attacker.ts"));
    assert_eq!(good.len(), bad.len());
    let mut wire = Wire::open(ONLY);
    wire.guest(START, "A", &good[..700]);
    wire.guest(START, "A", &bad[..700]);
    wire.guest(at(700), "A", &good[700..]);
    assert_eq!(wire.stream(), good);
    for (from, to) in [(0, bad.len()), (700, bad.len()), (0, 700), (350, 720)] {
        wire.guest(at(from), "A", &bad[from..to]);
    }
    wire.guest(at(0).wrapping_sub(10), "A", &[&[0; 10][..], &bad].concat());
    let sent: Vec<_> =
        wire.far.iter().map(|(from, payload)| (from.wrapping_sub(START) as usize, payload)).collect();
    assert!(sent.len() > 2, "the copies are sent again");
    assert!(sent.iter().all(|(from, payload)| good[*from..][..payload.len()] == payload[..]));
    // The far side has a part: the rest is sent again alone.
    wire.far.clear();
    assert_eq!(wire.server(SERVER, at(700), "A", b""), Outcome::Pass);
    wire.now += Duration::from_millis(200);
    wire.guest(START, "A", &bad);
    assert_eq!(wire.far, [(at(700), good[700..].to_vec())]);
}

#[test]
fn copies_that_are_sent_once_more_are_told_from_others() {
    let mut wire = Wire::open(ONLY);
    let copied = Copied::made(frame(true, START, SERVER, "A", &hello("www.example.org")));
    for is_repeated in [false, true] {
        let held = wire.filter.hold(&copied, Offload::default(), wire.now);
        assert_eq!((held.is_repeated, held.to_far), (is_repeated, vec![copied.clone()]));
        assert_eq!(wire.filter.held(), copied.frame.len(), "the message is judged: its copy alone is kept");
        wire.now += Duration::from_millis(200);
    }
}

#[test]
fn copies_are_sent_again_as_often_as_a_guest_would() {
    let mut wire = Wire::open(ONLY);
    let first = hello("www.example.org");
    wire.guest(START, "A", &first);
    (0..100).for_each(|_| wire.guest(START, "A", &first));
    assert_eq!(wire.far.len(), 2);
    wire.now += Duration::from_millis(200);
    (0..100).for_each(|_| wire.guest(START, "A", &first[..10]));
    assert_eq!(wire.far.len(), 3);
}

#[test]
fn short_first_piece_arrives_before_others_leave() {
    let message = hello("www.example.org");
    let mut wire = Wire::open(ONLY);
    wire.guest(START, "A", &message[..3]);
    wire.guest(at(3), "A", &message[3..]);
    let again = |wire: &mut Wire| {
        wire.now += Duration::from_millis(200);
        wire.guest(at(3), "A", &message[3..]);
    };
    again(&mut wire);
    assert_eq!(
        wire.far,
        [START; 2].map(|from| (from, message[..3].to_vec())),
        "the far side may not have it"
    );
    assert_eq!(wire.server(SERVER, at(3), "A", b""), Outcome::Pass);
    again(&mut wire);
    assert_eq!(wire.stream(), message);
}

#[test]
fn part_that_is_the_last_of_a_write_is_acknowledged() {
    let message = hello("www.example.org");
    let mut wire = Wire::open(ONLY);
    wire.guest(START, "A", &message[..300]);
    assert!(wire.acknowledges.is_empty(), "its program has written more");
    wire.guest(at(300), "AP", &message[300..500]);
    wire.guest(at(500), "AP", &message[500..600]);
    assert_eq!((&wire.acknowledges[..], wire.far.len()), (&[at(500), at(600)][..], 0));
    wire.guest(at(600), "AP", &message[600..]);
    assert_eq!((wire.stream(), wire.acknowledges.len()), (message.clone(), 2), "the far side does the rest");
    // The far side has got nothing: all of it is sent again, with the part that the guest does not know to
    // have arrived.
    wire.far.clear();
    wire.now += Duration::from_millis(200);
    wire.guest(at(600), "AP", &message[600..]);
    assert_eq!(wire.stream(), message);
    // It has got a part.
    wire.far.clear();
    wire.now += Duration::from_millis(200);
    assert_eq!(wire.server(SERVER, at(300), "A", b""), Outcome::Pass);
    wire.guest(at(600), "AP", &message[600..]);
    assert_eq!(wire.far.first(), Some(&(at(300), message[300..500].to_vec())));
    assert_eq!((wire.far.len(), wire.causes.len()), (3, 0));
}

#[test]
fn part_that_comes_again_is_acknowledged() {
    let message = hello("www.example.org");
    let mut wire = Wire::open(ONLY);
    wire.guest(START, "AP", &message[..100]);
    // Linux repeats the first segment alone, cut to a length, and without the flag.
    wire.guest(START, "A", &message[..60]);
    assert_eq!(wire.acknowledges, [at(100); 2]);
    // The second part comes again with the third.
    wire.guest(at(100), "AP", &message[100..200]);
    wire.guest(at(100), "AP", &message[100..300]);
    wire.guest(at(150), "A", &message[150..170]);
    wire.guest(at(300), "AP", &message[300..]);
    assert_eq!(wire.acknowledges[2..], [at(200), at(300), at(300)]);
    assert_eq!((wire.stream(), wire.causes.len()), (message, 0));
    assert_eq!(wire.filter.held(), wire.far.iter().map(|(_, bytes)| bytes.len() + 54).sum::<usize>());
}

#[test]
fn acknowledged_parts_stay_when_there_is_no_room() {
    let message = hello("www.example.org");
    let held = 54 + 2 * 100;
    let mut wire = Wire::open(ONLY);
    // Room for little more, and a connection that begins with it.
    let judge = Judge::clone(wire.filter.judge()).for_interfaces(crate::hold::MOST_HELD / (held + 10));
    wire.filter.change(Arc::new(judge), wire.now);
    wire.filter.begin_anew(US);
    wire.guest(START.wrapping_sub(1), "S", b"");
    assert_eq!(wire.server(SERVER - 1, START, "SA", b""), Outcome::Pass);
    wire.guest(START, "AP", &message[..100]);
    wire.guest(at(100), "AP", &message[100..200]);
    wire.guest(START, "AP", &message[..200]);
    assert_eq!(wire.causes, ["too many connections, or first messages of TLS at once"; 2]);
    assert_eq!((&wire.acknowledges[..], wire.filter.held()), (&[at(100)][..], held));
}

#[test]
fn message_with_the_end_of_the_guest_s_stream_is_judged() {
    let message = hello("www.example.org");
    let mut wire = Wire::open(ONLY);
    wire.guest(START, "AP", &message[..300]);
    wire.guest(at(300), "APF", &message[300..]);
    assert_eq!((wire.stream(), wire.causes.len()), (message.clone(), 0));
    assert_eq!(wire.server(SERVER, at(message.len() + 1), "A", b""), Outcome::Pass);
    let mut wire = Wire::open(ONLY);
    wire.guest(START, "APF", &message[..300]);
    assert!(wire.causes[0].contains("ends before"), "{:?}", wire.causes);
}

#[test]
fn second_message_in_parts_is_acknowledged_too() {
    let (first, second) = (hello("www.example.org"), hello("www.example.org"));
    let mut wire = Wire::open(ONLY);
    wire.guest(START, "AP", &first);
    assert_eq!(wire.server(SERVER, at(first.len()), "A", RETRY), Outcome::Pass);
    wire.guest(at(first.len()), "AP", &second[..200]);
    assert_eq!(wire.acknowledges, [at(first.len() + 200)]);
    wire.guest(at(first.len() + 200), "AP", &second[200..]);
    assert_eq!((wire.stream(), wire.causes.len()), ([first, second].concat(), 0));
}

#[test]
fn connection_ends_with_the_device_if_that_has_bytes_of_it() {
    let message = hello("www.example.org");
    let counts = |wire: &mut Wire| {
        let (ended, resets) = wire.filter.end_with_device();
        (ended.len(), resets.iter().map(|bytes| parsed(bytes).1.sequence).collect::<Vec<_>>())
    };
    let mut wire = Wire::open(ONLY);
    assert_eq!(counts(&mut wire), (0, vec![]), "nothing was sent");
    wire.guest(START, "AP", &message[..100]);
    assert_eq!(counts(&mut wire), (1, vec![START]), "the far side has nothing");
    assert_eq!((wire.filter.connections(), wire.filter.held()), (0, 0));
    let mut wire = Wire::open(ONLY);
    wire.guest(START, "AP", &message);
    assert_eq!(wire.server(SERVER, at(100), "A", b""), Outcome::Pass);
    assert_eq!(counts(&mut wire), (1, vec![at(message.len())]), "a copy may be lost");
    let mut wire = Wire::open(ONLY);
    wire.guest(START, "AP", &message);
    assert_eq!(wire.server(SERVER, at(message.len()), "A", b""), Outcome::Pass);
    assert_eq!(counts(&mut wire), (0, vec![]), "the far side has all");
}

proptest! {
    /// A guest that repeats what was not acknowledged gets its message through, whatever is lost, and however
    /// its program and its kernel divide it.
    #[test]
    fn honest_guest_gets_its_message_through(
        writes in prop::collection::vec(1_usize..400, 1..12),
        mss in 60_usize..500,
        lost in prop::collection::vec(any::<bool>(), 40),
    ) {
        let message = hello("www.example.org");
        let mut writes = writes.into_iter();
        let mut wire = Wire::open(ONLY);
        // Bytes that the program has written, that the guest has sent, that it knows to have arrived, and
        // that the far side has.
        let (mut written, mut sent, mut known, mut far) = (0, 0, 0, 0);
        let mut is_lost = lost.into_iter();
        for round in 0.. {
            prop_assert!(round < 200, "it hangs: {sent} of {} sent, {known} known", message.len());
            if far == message.len() {
                break;
            }
            // Nagle: a short segment waits until all before it is acknowledged.
            if sent == written && known == sent && written < message.len() {
                written = message.len().min(written + writes.next().unwrap_or(400));
            }
            let from = if sent < written { sent } else { known };
            let to = written.min(from + mss);
            let is_again = from < sent;
            wire.now += Duration::from_millis(if is_again { 200 } else { 1 });
            wire.far.clear();
            wire.acknowledges.clear();
            if from < to {
                wire.guest(at(from), if to == written { "AP" } else { "A" }, &message[from..to]);
            }
            sent = sent.max(to);
            // The answer of the device, or the copies, get lost.
            if is_lost.next().unwrap_or(false) {
                continue;
            }
            for acknowledged in &wire.acknowledges {
                known = known.max(acknowledged.wrapping_sub(START) as usize);
            }
            for (from, payload) in &wire.far {
                let from = from.wrapping_sub(START) as usize;
                prop_assert_eq!(payload, &message[from..from + payload.len()]);
                far = if from <= far { far.max(from + payload.len()) } else { far };
            }
            if far > 0 {
                prop_assert_eq!(wire.server(SERVER, at(far), "A", b""), Outcome::Pass);
                known = known.max(far);
            }
        }
        prop_assert!(wire.causes.is_empty(), "{:?}", wire.causes);
    }
}
