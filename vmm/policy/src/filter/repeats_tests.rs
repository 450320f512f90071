//! Segments that the guest sends again, in whole or in part, and parts that the device acknowledges.

use std::time::Duration;

use super::held_tests::{ONLY, SERVER, START, Wire, at, frame, hello};
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
    // The far side has got nothing: all of it is sent again, for the part that the guest takes for unknown.
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
fn acknowledgement_that_is_lost_comes_again() {
    let message = hello("www.example.org");
    let mut wire = Wire::open(ONLY);
    wire.guest(START, "AP", &message[..100]);
    wire.guest(START, "AP", &message[..100]);
    assert_eq!(wire.acknowledges, [at(100); 2]);
    // The second part is not known to have arrived, and comes again with the third.
    wire.guest(at(100), "AP", &message[100..200]);
    wire.guest(at(100), "AP", &message[100..300]);
    wire.guest(at(300), "AP", &message[300..]);
    assert_eq!(wire.acknowledges[2..], [at(200), at(300)]);
    assert_eq!((wire.stream(), wire.causes.len()), (message, 0));
    assert_eq!(wire.filter.held(), wire.far.iter().map(|(_, bytes)| bytes.len() + 54).sum::<usize>());
}
