//! Gates that keep disks from taking requests just before a pause, so that vCPUs are not paused while the
//! host's disk works.
//!
//! ```text
//!   close ──> requests stay in the queues ──> requests in flight end ──> pause ──> halt ──> open
//!             └─────────────── the vCPUs run ───────────────┘
//! ```

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use super::Block;

/// Longest wait for disks if there is no limit. The pause waits for the rest.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time between two looks at a disk that executes a request at once.
const LOOK: Duration = Duration::from_micros(50);

/// The gate of a disk. It lies beside the device's lock, because the lock is held while a request is
/// executed at once.
#[derive(Debug, Default)]
pub struct Gate {
    is_closed: AtomicBool,
    /// Notified when the device has nothing in flight behind a closed gate.
    idle: Condvar,
}

impl Gate {
    /// Returns whether the device must not take requests.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    pub(super) fn notify_idle(&self) {
        self.idle.notify_all();
    }

    /// Waits for the disk until `end`. Returns whether it has nothing in flight.
    fn wait_idle(&self, disk: &Mutex<Block>, end: Instant) -> bool {
        let Some(locked) = lock_until(disk, end) else { return false };
        let left = end.saturating_duration_since(Instant::now());
        let waited = self.idle.wait_timeout_while(locked, left, |disk| !disk.is_idle());
        waited.unwrap_or_else(PoisonError::into_inner).0.is_idle()
    }
}

/// Closed gates, which open on drop. A device that was not halted meanwhile may have missed a notification
/// of its driver.
#[derive(Debug)]
pub struct ClosedGates(Vec<Arc<Gate>>);

/// Longest wait, because a later [`Instant`] may not be representable.
const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

impl ClosedGates {
    /// Closes the gates of disks, and waits until the disks have nothing in flight: for at most a second, or
    /// for `longest`. With `longest`, returns `None` if requests are still in flight.
    pub fn within(disks: &[(Arc<Gate>, Arc<Mutex<Block>>)], longest: Option<Duration>) -> Option<Self> {
        let (closed, is_idle) = Self::of(disks, longest.unwrap_or(PATIENCE));
        (is_idle || longest.is_none()).then_some(closed)
    }

    /// Closes the gates of disks, and waits at most `longest` until the disks have nothing in flight.
    /// Returns whether they have nothing in flight.
    fn of(disks: &[(Arc<Gate>, Arc<Mutex<Block>>)], longest: Duration) -> (Self, bool) {
        let end = Instant::now() + longest.min(YEAR);
        disks.iter().for_each(|(gate, _)| gate.is_closed.store(true, Ordering::Release));
        let closed = Self(disks.iter().map(|(gate, _)| Arc::clone(gate)).collect());
        let is_idle = disks.iter().all(|(gate, disk)| gate.wait_idle(disk, end));
        (closed, is_idle)
    }
}

/// Locks a disk by `end`, if possible. A disk holds its lock while it executes a request at once.
fn lock_until(disk: &Mutex<Block>, end: Instant) -> Option<MutexGuard<'_, Block>> {
    loop {
        match disk.try_lock() {
            Ok(locked) => return Some(locked),
            Err(TryLockError::Poisoned(locked)) => return Some(locked.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() < end => thread::sleep(LOOK),
            Err(TryLockError::WouldBlock) => return None,
        }
    }
}

impl Drop for ClosedGates {
    fn drop(&mut self) {
        self.0.iter().for_each(|gate| gate.is_closed.store(false, Ordering::Release));
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::testing::{
        DONE, FLUSH, OUT, TestDir, disk_on, header, on_both_engines, read, status, write,
    };
    use super::*;
    use crate::config::devices::Engine;
    use crate::devices::virtio::feature;
    use crate::devices::virtio::testing::{Driver, MEMORY, Part};
    use crate::memory::backing::Backing;
    use crate::memory::ram::GuestRam;
    use crate::sync::lock;

    fn driver(block: &Arc<Mutex<Block>>) -> Driver {
        let ram = GuestRam::reserve(MEMORY).unwrap();
        Backing::Fresh.map(&ram).unwrap();
        Driver::with_memory(Arc::clone(block) as _, ram, !feature::EVENT_IDX)
    }

    #[test]
    fn closed_gate_leaves_requests_in_the_queue_until_after_the_halt() {
        on_both_engines(|engine| {
            let dir = TestDir::new();
            let path = dir.file("image", &[0; 8192]);
            let block = Block::open(&disk_on(engine, &path)).unwrap();
            let gate = block.gate();
            let block = Arc::new(Mutex::new(block));
            let mut driver = driver(&block);
            assert_eq!(write(&mut driver, 0, &[1; 512]), DONE);
            let (closed, is_idle) = ClosedGates::of(&[(gate, Arc::clone(&block))], PATIENCE);
            assert!(is_idle);
            driver.send(0, &[Part::Out(&header(OUT, 1)), Part::Out(&[2; 512]), Part::In(1)]);
            // A halted device has nothing in flight, and has looked at its queue.
            driver.transport.halt();
            assert!(driver.poll(0).is_none(), "completed behind a closed gate");
            assert_eq!(fs::read(&path).unwrap()[512], 0);
            drop(closed);
            driver.transport.resume().unwrap();
            assert_eq!(status(&driver.wait(0)), DONE);
            assert_eq!(read(&mut driver, 1, 512).unwrap(), [2; 512]);
        });
    }

    #[test]
    fn gate_is_closed_once_requests_in_flight_have_ended() {
        on_both_engines(|engine| {
            let dir = TestDir::new();
            let path = dir.file("image", &vec![7; 4 << 20]);
            let block = Block::open(&disk_on(engine, &path)).unwrap();
            let gate = block.gate();
            let block = Arc::new(Mutex::new(block));
            let mut driver = driver(&block);
            let mut busy = 0;
            for turn in 0..50 {
                for number in 0..8 {
                    driver.send(0, &[Part::Out(&header(OUT, number)), Part::Out(&[8; 512]), Part::In(1)]);
                }
                // io_uring leaves a flush to a kernel thread, so that it is in flight for a while.
                driver.send(0, &[Part::Out(&header(FLUSH, 0)), Part::In(1)]);
                // The device's thread takes a while to begin, on a busy host longer than the requests take.
                let until = Instant::now() + Duration::from_millis(5);
                let mut looks = std::iter::repeat_with(|| !lock(&block).is_idle());
                let is_busy = looks.by_ref().take_while(|_| Instant::now() < until).any(|is_busy| is_busy);
                busy += u32::from(is_busy);
                let (closed, is_idle) = ClosedGates::of(&[(Arc::clone(&gate), Arc::clone(&block))], PATIENCE);
                assert!(is_idle && lock(&block).is_idle(), "turn {turn}");
                driver.transport.halt();
                drop(closed);
                driver.transport.resume().unwrap();
                (0..9).for_each(|_| assert_eq!(status(&driver.wait(0)), DONE));
            }
            assert!(busy > 0 || engine == Engine::Sync, "nothing was in flight when the gate was closed");
        });
    }

    /// A disk holds its lock while it executes a request at once, here for longer than the limit.
    #[test]
    fn wait_ends_at_its_limit_while_a_disk_is_busy() {
        let dir = TestDir::new();
        let block = Block::open(&disk_on(Engine::Sync, dir.file("image", &[0; 8192]))).unwrap();
        let gate = block.gate();
        let disks = [(Arc::clone(&gate), Arc::new(Mutex::new(block)))];
        let busy = lock(&disks[0].1);
        let (closed, is_idle) = ClosedGates::of(&disks, Duration::from_millis(1));
        assert!(!is_idle && gate.is_closed());
        drop((closed, busy));
        assert!(!gate.is_closed());
        assert!(ClosedGates::of(&disks, Duration::ZERO).1, "an idle disk takes no time");
        assert!(ClosedGates::within(&disks, Some(Duration::MAX)).is_some());
    }

    /// A flush may take longer than the default limit of a second.
    #[test]
    fn wait_lasts_until_a_disk_is_idle_within_a_long_limit() {
        let dir = TestDir::new();
        let block = Block::open(&disk_on(Engine::Sync, dir.file("image", &[0; 8192]))).unwrap();
        let gate = block.gate();
        let disk = Arc::new(Mutex::new(block));
        let disks = [(gate, Arc::clone(&disk))];
        let (sender, begun) = std::sync::mpsc::channel();
        let flush = thread::spawn(move || {
            let _busy = lock(&disk);
            sender.send(()).unwrap();
            thread::sleep(PATIENCE + Duration::from_millis(500));
        });
        begun.recv().unwrap();
        assert!(ClosedGates::within(&disks, Some(Duration::from_millis(1))).is_none());
        assert!(ClosedGates::within(&disks, Some(Duration::from_secs(60))).is_some(), "the limit allows it");
        flush.join().unwrap();
    }
}
