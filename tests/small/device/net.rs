//! A small guest answers Ethernet frames by looking, and goes on with that in clones, each on a tap of its
//! own.

use std::sync::mpsc::{TryRecvError, channel};

use volt_tests::wire::KIND;
use volt_tests::{Boot, Guest, Wire, needs};

const HEADER: usize = 14;
const SHORTEST: usize = 60;
const LONGEST: usize = 1514;
/// The longest frame takes six of the eight. One that finds fewer than it needs is given up after a while,
/// which on a busy host is not long.
const SMALL: (&str, usize) = ("net mergeable=1 buffer=256", 8);
/// A frame takes one, and waits for it on the host.
const WHOLE: (&str, usize) = ("net", usize::MAX);

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

/// Sends frames of these lengths, as many in a row as fit into so many of the small buffers, and looks for
/// the answers, which come in the same order. Those of other streams are not looked at.
fn exchange(wire: &Wire, stream: u8, lengths: &[usize], buffers: usize) {
    let frames: Vec<_> =
        lengths.iter().enumerate().map(|(number, len)| frame(stream, number, *len)).collect();
    let (mut unsent, mut taken) = (frames.iter().peekable(), 0);
    for frame in &frames {
        while let Some(next) = unsent.next_if(|next| taken + buffers_of(next) <= buffers) {
            wire.send(next);
            taken += buffers_of(next);
        }
        let mut answer = wire.receive();
        while answer[HEADER] != !stream {
            answer = wire.receive();
        }
        let (sent, came) = (&frame[..20], &answer[..20]);
        let lengths = (frame.len(), answer.len());
        assert!(answer == answer_to(frame), "{sent:?}… was answered by {came:?}…, lengths {lengths:?}");
        taken -= buffers_of(frame);
    }
}

/// How many of the small buffers a frame takes, with its virtio header.
fn buffers_of(frame: &[u8]) -> usize {
    (frame.len() + 12).div_ceil(256)
}

#[test]
fn frames_of_all_lengths_come_in_order_and_are_answered() {
    needs!(kvm, network);
    for ((cmdline, buffers), name) in [(WHOLE, "whole"), (SMALL, "small")] {
        let tap = tap(name);
        let mut guest = boot(cmdline, &tap);
        let wire = Wire::of(&tap);
        exchange(&wire, 1, &[SHORTEST], buffers);
        exchange(&wire, 2, &[LONGEST], buffers);
        let lengths: Vec<_> = (SHORTEST..=LONGEST).step_by(41).chain([LONGEST; 4]).collect();
        exchange(&wire, 3, &lengths, buffers);
        while guest.next_number("frame") < 2 + lengths.len() as u64 {}
        assert!(!guest.output().contains("WRONG"), "{}", guest.output());
    }
}

#[test]
fn a_snapshot_between_frames_loses_none_and_clones_answer_on_their_own_taps() {
    needs!(kvm, network);
    let names = [tap("orig"), tap("one"), tap("two")];
    let (cmdline, buffers) = SMALL;
    let mut guest = boot(cmdline, &names[0]);
    let wire = Wire::of(&names[0]);
    let mut answered = 0;
    let snapshot = std::thread::scope(|scope| {
        let (busy, done) = channel::<()>();
        let wire = &wire;
        scope.spawn(move || {
            while done.try_recv() == Err(TryRecvError::Empty) {
                exchange(wire, 1, &[SHORTEST, LONGEST, 100, LONGEST, 400, 1000, LONGEST], buffers);
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
        // With its answer, all buffers are there again that were in use in the snapshot.
        exchange(&wire, stream, &[SHORTEST], buffers);
        exchange(&wire, stream, &[LONGEST, SHORTEST, 100, LONGEST, 1000], buffers);
        assert!(clone.next_number("frame") > answered);
        assert!(!clone.output().contains("WRONG"), "{}", clone.output());
    }
    exchange(&wire, 9, &[SHORTEST, LONGEST], buffers);
    assert!(!guest.output().contains("WRONG"), "{}", guest.output());
}
