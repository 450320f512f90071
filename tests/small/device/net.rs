//! A small guest polls for Ethernet frames and answers them. Each clone does so on its own tap.

use std::os::fd::AsRawFd;
use std::sync::mpsc::{TryRecvError, channel};

use volt_tests::wire::KIND;
use volt_tests::{Boot, Guest, Wire, inherited_tap, needs};

const HEADER: usize = 14;
const SHORTEST: usize = 60;
const LONGEST: usize = 1514;
/// Small buffers: the longest frame takes six of the eight. A frame without enough buffers is soon dropped.
const SMALL: (&str, usize) = ("net mergeable=1 buffer=256", 8);
/// Buffers for whole frames: a frame takes one, and waits for it on the host.
const WHOLE: (&str, usize) = ("net", usize::MAX);

/// Returns a name for a tap that no other test uses.
fn tap(name: &str) -> String {
    format!("v{}{name}", std::process::id())
}

fn boot(cmdline: &str, tap: &str) -> Guest {
    let mut guest = Boot::small(cmdline).device(["--net", &format!("id=eth0,tap={tap}")]).start();
    guest.wait_for("ready");
    guest
}

/// Returns a unique frame of `len` bytes.
fn frame(stream: u8, number: usize, len: usize) -> Vec<u8> {
    let mut frame = vec![0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2];
    frame.extend(KIND.to_be_bytes());
    frame.push(stream);
    frame.extend((0..len - frame.len()).map(|at| (at * 7 + at / 256 + number * 13) as u8));
    frame
}

/// Returns the guest's answer to a frame.
fn answer_to(frame: &[u8]) -> Vec<u8> {
    let (addresses, carried) = (&frame[..12], &frame[HEADER..]);
    let mut answer = [&addresses[6..], &addresses[..6], &KIND.to_be_bytes()].concat();
    answer.extend(carried.iter().map(|byte| !byte));
    answer
}

/// Sends frames of these lengths, at most as many at once as the buffers hold. Checks the answers, which come
/// in the same order, and ignores those of other streams.
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

/// Counts the small buffers that a frame and its virtio header take.
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
fn guest_answers_on_a_tap_that_the_vm_inherits_also_after_a_restore() {
    needs!(kvm, network);
    let name = tap("fd");
    let inherited = inherited_tap(&name);
    let network = format!("id=eth0,tap=fd:{}", inherited.as_raw_fd());
    let mut guest = Boot::small("net").device(["--net", &network]).start();
    guest.wait_for("ready");
    let wire = Wire::of(&name);
    exchange(&wire, 1, &[SHORTEST, LONGEST], usize::MAX);
    let snapshot = guest.snapshot();
    guest.kill();
    let clone = snapshot.restore_as(&["--net", &network]);
    exchange(&wire, 2, &[SHORTEST, LONGEST], usize::MAX);
    assert!(!clone.output().contains("WRONG"), "{}", clone.output());
}

#[test]
fn snapshot_between_frames_loses_none_and_clones_answer_on_their_taps() {
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
        // After its answer, the buffers that were in use at the snapshot are free again.
        exchange(&wire, stream, &[SHORTEST], buffers);
        exchange(&wire, stream, &[LONGEST, SHORTEST, 100, LONGEST, 1000], buffers);
        assert!(clone.next_number("frame") > answered);
        assert!(!clone.output().contains("WRONG"), "{}", clone.output());
    }
    exchange(&wire, 9, &[SHORTEST, LONGEST], buffers);
    assert!(!guest.output().contains("WRONG"), "{}", guest.output());
}
