//! Tests that the device stays idle if a ready event cannot be used.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// Counts the device's turns.
#[derive(Debug)]
struct TurnCounter(Net, Arc<AtomicUsize>);

impl VirtioDevice for TurnCounter {
    fn kind(&self) -> DeviceKind {
        self.0.kind()
    }

    fn features(&self) -> u64 {
        self.0.features()
    }

    fn begin(&mut self, io: &mut DeviceIo<'_>, watch: &Watch) -> std::result::Result<(), DeviceFailed> {
        self.0.begin(io, watch)
    }

    fn work(
        &mut self,
        cause: WakeReason,
        io: &mut DeviceIo<'_>,
    ) -> std::result::Result<NextTurn, DeviceFailed> {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.work(cause, io)
    }
}

impl Persist for TurnCounter {
    type State = NetState;

    fn save(&self) -> Result<NetState> {
        self.0.save()
    }

    fn restore(&mut self, state: &NetState) -> Result<()> {
        self.0.restore(state)
    }
}

/// Asserts few turns: a device that spins has thousands.
fn assert_idle(turns: &AtomicUsize) {
    std::thread::sleep(Duration::from_millis(300)); // longer than a frame waits for buffers
    let before = turns.load(Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(50));
    let more = turns.load(Ordering::SeqCst) - before;
    assert!(more < 10, "{more} turns");
}

#[test]
fn device_is_idle_with_frames_but_no_buffers_and_with_buffers_but_no_frames() {
    let turns = Arc::new(AtomicUsize::new(0));
    let (end, other) = wire();
    let mut driver = Driver::new(TurnCounter(net(end), Arc::clone(&turns)));
    assert_idle(&turns);
    for number in 0..3 {
        other.send(&with_header(&frame(number, 1000))).unwrap();
    }
    assert_idle(&turns);
    driver.send(IN, &[Part::In(500)]);
    assert_idle(&turns);
    for _ in 0..20 {
        driver.send(IN, &[Part::In(500)]);
    }
    assert_eq!(next_in(&mut driver), frame(1, 1000), "the first was given up");
    assert_idle(&turns);
    // The other end is full, and then closed.
    for _ in 0..60 {
        driver.send(OUT, &[Part::Out(&with_header(&frame(0, 20_000)))]);
    }
    assert_idle(&turns);
    drop(other);
    assert_idle(&turns);
}
