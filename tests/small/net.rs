//! A small guest answers Ethernet frames by looking, and goes on with that in clones, each on a tap of its own.

use std::sync::mpsc::{TryRecvError, channel};

use volt_tests::wire::KIND;
use volt_tests::{Boot, Guest, Wire, needs};

const HEADER: usize = 14;
const SHORTEST: usize = 60;
const LONGEST: usize = 1514;
/// With buffers of 256 bytes, the longest frame takes six of the guest's eight.
const SMALL_BUFFERS: &str = "net mergeable=1 buffer=256";

/// A name that no other test has.
fn tap(name: &str) -> String {
    format!("v{}{name}", std::process::id())
}

fn boot(cmdline: &str, tap: &str) -> Guest {
    let mut guest = Boot::small(cmdline).device(["--net", &format!("id=eth0,tap={tap}")]).start();
    guest.wait_for("ready");
    guest
}

/// A frame of so many bytes, unlike any other.
fn frame(stream: u8, number: usize, len: usize) -> Vec<u8> {
    let mut frame = vec![0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2];
    frame.extend(KIND.to_be_bytes());
    frame.push(stream);
    frame.extend((0..len - frame.len()).map(|at| (at * 7 + at / 256 + number * 13) as u8));
    frame
}

/// What the guest makes of it.
fn answer_to(frame: &[u8]) -> Vec<u8> {
    let (addresses, carried) = (&frame[..12], &frame[HEADER..]);
    let mut answer = [&addresses[6..], &addresses[..6], &KIND.to_be_bytes()].concat();
    answer.extend(carried.iter().map(|byte| !byte));
    answer
}

/// Sends frames of these lengths in a row, then looks for the answers, which come in the same order. Those of other streams
/// are not looked at.
fn exchange(wire: &Wire, stream: u8, lengths: &[usize]) {
    let frames = || lengths.iter().enumerate().map(|(number, len)| frame(stream, number, *len));
    frames().for_each(|frame| wire.send(&frame));
    for frame in frames() {
        let mut answer = wire.receive();
        while answer[HEADER] != !stream {
            answer = wire.receive();
        }
        assert!(answer == answer_to(&frame), "{frame:?} was answered by {answer:?}");
    }
}

#[test]
fn frames_of_all_lengths_come_in_order_and_are_answered() {
    needs!(kvm, tap);
    for (cmdline, name) in [("net", "whole"), (SMALL_BUFFERS, "small")] {
        let tap = tap(name);
        let mut guest = boot(cmdline, &tap);
        let wire = Wire::of(&tap);
        exchange(&wire, 1, &[SHORTEST]);
        exchange(&wire, 2, &[LONGEST]);
        let lengths: Vec<_> = (SHORTEST..=LONGEST).step_by(41).chain([LONGEST; 4]).collect();
        exchange(&wire, 3, &lengths);
        while guest.next_number("frame") < 2 + lengths.len() as u64 {}
        assert!(!guest.output().contains("WRONG"), "{}", guest.output());
    }
}

#[test]
fn a_snapshot_between_frames_loses_none_and_clones_answer_on_their_own_taps() {
    needs!(kvm, tap);
    let names = [tap("orig"), tap("one"), tap("two")];
    let mut guest = boot(SMALL_BUFFERS, &names[0]);
    let wire = Wire::of(&names[0]);
    let mut answered = 0;
    let snapshot = std::thread::scope(|scope| {
        let (busy, done) = channel::<()>();
        let wire = &wire;
        scope.spawn(move || {
            while done.try_recv() == Err(TryRecvError::Empty) {
                exchange(wire, 1, &[SHORTEST, LONGEST, 100, LONGEST, 1000, LONGEST]);
            }
        });
        while answered < 10 {
            answered = guest.next_number("frame");
        }
        let snapshot = guest.snapshot();
        guest.next_number("frame");
        drop(busy);
        snapshot
    });
    snapshot.try_restore().refused(&["tap", &names[0]]);

    let clones = names[1..].iter().map(|tap| {
        let clone = snapshot.restore_as(&["--net", &format!("id=eth0,tap={tap}")]);
        (clone, Wire::of(tap))
    });
    for (stream, (mut clone, wire)) in (2..).zip(clones.collect::<Vec<_>>()) {
        exchange(&wire, stream, &[SHORTEST, LONGEST, LONGEST, 100, LONGEST]);
        assert!(clone.next_number("frame") > answered);
        assert!(!clone.output().contains("WRONG"), "{}", clone.output());
    }
    exchange(&wire, 9, &[SHORTEST, LONGEST]);
    assert!(!guest.output().contains("WRONG"), "{}", guest.output());
}
