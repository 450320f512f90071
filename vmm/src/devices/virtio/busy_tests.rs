//! Drivers of devices that are busy, fail or have failed.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use rustix::event::epoll::EventFlags;

use super::super::rng::Rng;
use super::super::testing::{Driver, Part};
use super::super::watch::Watch;
use super::super::{DeviceFailed, DeviceIo, DeviceKind, NextTurn, WakeReason};
use super::*;
use crate::devices::bus::Bus;
use crate::devices::idle_watcher::IdleWatcher;
use crate::persist::NoState;
use crate::run_control::Control;
use crate::testing::{apart, limited, refuse_calls, wait_until};

/// Limit for each act. A hang takes longer.
const LIMIT: Duration = Duration::from_secs(10);

/// A device whose turn lasts until the test ends it, like a disk's turn until its data are synced.
#[derive(Debug)]
struct SlowDevice {
    begun: Sender<()>,
    released: Receiver<()>,
}

impl VirtioDevice for SlowDevice {
    fn kind(&self) -> DeviceKind {
        DeviceKind { id: 4, queues: &[64] }
    }

    fn config(&self) -> Vec<u8> {
        b"configuration".to_vec()
    }

    fn work(&mut self, _: WakeReason, _: &mut DeviceIo<'_>) -> std::result::Result<NextTurn, DeviceFailed> {
        self.begun.send(()).expect("the test waits for it");
        let _ = self.released.recv(); // an error ends the turn too
        Ok(NextTurn::Wait)
    }
}

impl Persist for SlowDevice {
    type State = NoState;

    fn save(&self) -> Result<Self::State> {
        Ok(NoState {})
    }

    fn restore(&mut self, _: &Self::State) -> Result<()> {
        Ok(())
    }
}

fn slow() -> (Driver, Receiver<()>, Sender<()>) {
    let ((begun, is_begun), (end, released)) = (channel(), channel());
    (Driver::new(SlowDevice { begun, released }), is_begun, end)
}

/// A bus with this device.
fn bus_with(transport: Transport) -> (Bus, Arc<Mutex<Transport>>) {
    let (mut bus, view) = (Bus::default(), transport.view());
    let transport = Arc::new(Mutex::new(transport));
    bus.insert_with_view(0, LEN, Arc::clone(&transport) as _, view);
    (bus, transport)
}

/// Acts as a vCPU does. Gives up after [`LIMIT`].
fn as_vcpu<T: Send + 'static>(bus: &Bus, act: impl FnOnce(&Bus) -> T + Send + 'static) -> T {
    let bus = bus.clone();
    let (done, is_done) = channel();
    thread::spawn(move || done.send(act(&bus)));
    is_done.recv_timeout(LIMIT).expect("a vCPU waits for the device")
}

fn read_as_vcpu(bus: &Bus) -> [Vec<u8>; 5] {
    as_vcpu(bus, |bus| {
        let read = |(offset, len)| {
            let mut data = vec![0; len];
            bus.read(offset, &mut data);
            data
        };
        [(0x60, 4), (0x70, 4), (0xfc, 4), (0x100, 8), (0x108, 1)].map(read)
    })
}

/// Resets a device during its turn, as another vCPU does. Returns when the reset waits for the turn's end
/// with the transport's lock.
fn begin_reset(transport: &Arc<Mutex<Transport>>) -> thread::JoinHandle<()> {
    let resetting = Arc::clone(transport);
    let reset = thread::spawn(move || lock(&resetting).write(0x70, &[0; 4]));
    wait_until("another vCPU resets the device", || transport.try_lock().is_err());
    reset
}

fn assert_readable(bus: &Bus) {
    let [interrupt, status, _, config, more] = read_as_vcpu(bus);
    assert_eq!((&interrupt[..], &status[..]), (&[0; 4][..], &[15, 0, 0, 0][..]));
    assert_eq!((&config[..], &more[..]), (&b"configur"[..], &b"a"[..]));
}

#[test]
fn registers_are_read_while_an_idle_device_takes_its_first_turn() {
    let (mut driver, is_begun, end) = slow();
    is_begun.recv_timeout(LIMIT).unwrap();
    end.send(()).unwrap();
    driver.transport.halt();
    let (bus, transport) = bus_with(driver.take_transport());
    let idle_watcher =
        IdleWatcher::start(vec![Arc::clone(&transport)], &Arc::default(), Control::new()).unwrap();
    is_begun.recv_timeout(LIMIT).unwrap();
    assert_readable(&bus);
    end.send(()).unwrap();
    drop(idle_watcher);
    lock(&transport).halt();
}

#[test]
fn registers_are_read_while_a_device_works_and_while_it_is_reset() {
    let (mut driver, is_begun, end) = slow();
    is_begun.recv_timeout(LIMIT).unwrap();
    let (bus, transport) = bus_with(driver.take_transport());
    assert_readable(&bus);
    let reset = begin_reset(&transport);
    assert_readable(&bus);
    end.send(()).unwrap();
    limited("the reset ends", || reset.join()).unwrap();
    assert_eq!(read_as_vcpu(&bus)[1], [0; 4], "it is reset");
}

#[test]
fn interrupt_is_acknowledged_while_a_device_works_and_while_it_is_reset() {
    let (mut driver, is_begun, end) = slow();
    is_begun.recv_timeout(LIMIT).unwrap();
    let view = driver.transport.view();
    let (bus, transport) = bus_with(driver.take_transport());
    let acknowledge = |left: u32, bits: u32| {
        as_vcpu(&bus, move |bus| bus.write(0x64, &bits.to_le_bytes()));
        assert_eq!(read_as_vcpu(&bus)[0], left.to_le_bytes());
    };
    view.interrupt.queue();
    view.interrupt.config();
    acknowledge(2, 1);
    let reset = begin_reset(&transport);
    acknowledge(0, 2);
    end.send(()).unwrap();
    limited("the reset ends", || reset.join()).unwrap();
}

#[test]
fn device_that_is_reset_in_its_first_turn_starts_anew() {
    let (mut driver, is_begun, end) = slow();
    is_begun.recv_timeout(LIMIT).unwrap();
    end.send(()).unwrap();
    driver.transport.halt();
    let transport = Arc::new(Mutex::new(driver.take_transport()));
    let idle_watcher =
        IdleWatcher::start(vec![Arc::clone(&transport)], &Arc::default(), Control::new()).unwrap();
    is_begun.recv_timeout(LIMIT).unwrap();
    let reset = begin_reset(&transport);
    end.send(()).unwrap();
    limited("the reset ends", || reset.join()).unwrap();
    drop(idle_watcher);
    driver.transport = Arc::into_inner(transport).unwrap().into_inner().unwrap();
    driver.set_up(!0);
    is_begun.recv_timeout(LIMIT).unwrap();
    end.send(()).unwrap();
}

#[test]
fn device_thread_that_panics_asks_for_a_reset_at_once() {
    let mut driver = Driver::new(PanickingDevice { when: Panic::InItsTurn });
    driver.wait_broken();
    assert_eq!(driver.get(0x60), 2, "the driver is interrupted for it");
    assert!(driver.transport.interrupt_line().read().is_ok());
    // After a pause and a snapshot, too.
    driver.move_to(Rng::default());
    assert!(driver.needs_reset());
    driver.set_up(!0);
    assert_eq!(driver.ask(0, &[Part::In(8)]).len, 8);
}

#[test]
fn panic_of_a_device_is_logged_once() {
    let mut driver = Driver::new(PanickingDevice { when: Panic::InItsTurn });
    driver.wait_broken();
    for _ in 0..3 {
        driver.send(0, &[Part::In(8)]);
        driver.transport.halt();
        driver.transport.resume().unwrap();
    }
    driver.transport.halt();
    assert_eq!(driver.transport.failures.log.written(), 1);
}

#[test]
fn device_that_panics_in_its_first_turn_asks_for_a_reset() {
    let mut driver = Driver::new(PanickingDevice { when: Panic::InItsTurn });
    driver.transport.halt();
    driver.transport.view.interrupt.reset();
    let transport = Arc::new(Mutex::new(driver.take_transport()));
    let idle_watcher =
        IdleWatcher::start(vec![Arc::clone(&transport)], &Arc::default(), Control::new()).unwrap();
    wait_until("the driver is told that the device needs a reset", || {
        lock(&transport).view.interrupt.is_reset_needed()
    });
    drop(idle_watcher);
    lock(&transport).halt();
    assert_eq!(lock(&transport).queues.len(), 1);
}

#[test]
fn device_that_panicked_takes_no_other_turn_of_its_round() {
    let turns = Arc::new(AtomicU32::new(0));
    let mut driver = Driver::new(PanicsAtEach { ready: [1, 1].map(readable), turns: Arc::clone(&turns) });
    driver.wait_broken();
    driver.transport.halt();
    assert_eq!(turns.load(Ordering::Relaxed), 1);
}

/// A device that panics for each of its descriptors, which are ready at once.
#[derive(Debug)]
struct PanicsAtEach {
    ready: [OwnedFd; 2],
    turns: Arc<AtomicU32>,
}

fn readable(count: u32) -> OwnedFd {
    rustix::event::eventfd(count, rustix::event::EventfdFlags::CLOEXEC).unwrap()
}

impl VirtioDevice for PanicsAtEach {
    fn kind(&self) -> DeviceKind {
        DeviceKind { id: 4, queues: &[64] }
    }

    fn begin(&mut self, _: &mut DeviceIo<'_>, watch: &Watch) -> std::result::Result<(), DeviceFailed> {
        for (fd, token) in self.ready.iter().zip(0..) {
            watch.add(fd, token, EventFlags::IN).unwrap();
        }
        Ok(())
    }

    fn work(
        &mut self,
        cause: WakeReason,
        _: &mut DeviceIo<'_>,
    ) -> std::result::Result<NextTurn, DeviceFailed> {
        if cause == WakeReason::Notified {
            return Ok(NextTurn::Wait);
        }
        self.turns.fetch_add(1, Ordering::Relaxed);
        panic!("as it is to");
    }
}

impl Persist for PanicsAtEach {
    type State = NoState;

    fn save(&self) -> Result<Self::State> {
        Ok(NoState {})
    }

    fn restore(&mut self, _: &Self::State) -> Result<()> {
        Ok(())
    }
}

/// At a pause, with and without a thread.
#[test]
fn device_that_panics_at_its_end_asks_for_a_reset() {
    for has_thread in [true, false] {
        let mut driver = Driver::new(PanickingDevice { when: Panic::AtItsEnd });
        if !has_thread {
            driver.transport.halt();
            driver.transport.view.interrupt.reset();
            driver.transport.stand_by().unwrap().expect("it is halted").take();
            assert!(driver.transport.settle().unwrap().is_some(), "it is idle and needs no thread");
        }
        assert!(!driver.needs_reset());
        driver.transport.halt();
        assert!(driver.needs_reset(), "with a thread: {has_thread}");
        assert_eq!(driver.transport.queues.len(), 1);
        driver.move_to(Rng::default());
        driver.set_up(!0);
        assert_eq!(driver.ask(0, &[Part::In(8)]).len, 8);
    }
}

/// When a device panics.
#[derive(Debug, PartialEq, Eq)]
enum Panic {
    InItsTurn,
    AtItsEnd,
}

/// A device with a bug.
#[derive(Debug)]
struct PanickingDevice {
    when: Panic,
}

impl VirtioDevice for PanickingDevice {
    fn kind(&self) -> DeviceKind {
        DeviceKind { id: 4, queues: &[64] }
    }

    fn work(&mut self, _: WakeReason, _: &mut DeviceIo<'_>) -> std::result::Result<NextTurn, DeviceFailed> {
        assert!(self.when == Panic::AtItsEnd, "as it is to");
        Ok(NextTurn::Wait)
    }

    fn end(&mut self, _: &mut DeviceIo<'_>) -> std::result::Result<(), DeviceFailed> {
        assert!(self.when == Panic::InItsTurn, "as it is to");
        Ok(())
    }
}

impl Persist for PanickingDevice {
    type State = NoState;

    fn save(&self) -> Result<Self::State> {
        Ok(NoState {})
    }

    fn restore(&mut self, _: &Self::State) -> Result<()> {
        Ok(())
    }
}

#[test]
fn device_that_its_driver_gave_up_stays_so_over_a_pause_and_a_snapshot() {
    let mut driver = Driver::new(Rng::default());
    driver.ask(0, &[Part::In(8)]);
    driver.set(0x70, 0x80);
    assert_eq!(driver.get(0x70), 0x8f);
    for _ in 0..2 {
        driver.transport.resume().unwrap();
        assert!(driver.transport.stand_by().unwrap().is_none());
        assert!(driver.transport.worker.is_none(), "nobody works on a device whose driver said FAILED");
        driver.move_to(Rng::default());
        assert_eq!(driver.get(0x70), 0x8f);
    }
    driver.send(0, &[Part::In(8)]);
    assert_eq!(driver.poll(0), None);
    driver.set_up(!0);
    assert_eq!(driver.ask(0, &[Part::In(8)]).len, 8);
}

#[test]
fn device_that_cannot_begin_keeps_its_queues() {
    let mut driver = Driver::new(Rng::default());
    driver.ask(0, &[Part::In(8)]);
    driver.transport.halt();
    driver.send(0, &[Part::In(8)]);
    // epoll refuses a regular file.
    let notify = std::mem::replace(&mut driver.transport.notify, no_eventfd());
    assert!(driver.transport.resume().is_err());
    assert!(driver.transport.stand_by().is_err());
    driver.set(0x30, 0);
    assert_eq!(driver.get(0x44), 1, "the queue is ready");
    driver.transport.notify = notify;
    driver.move_to(Rng::default());
    assert_eq!(driver.wait(0).len, 8);
    driver.ask(0, &[Part::In(8)]);
}

#[test]
fn device_that_gets_no_thread_keeps_its_queues() {
    let test = || {
        let mut driver = Driver::new(Rng::default());
        driver.ask(0, &[Part::In(8)]);
        driver.transport.halt();
        driver.send(0, &[Part::In(8)]);
        refuse_calls(&[libc::SYS_clone, libc::SYS_clone3], libc::EAGAIN);
        assert!(driver.transport.resume().is_err());
        driver.transport.stand_by().unwrap().expect("it is halted").take();
        driver.wait(0);
        assert!(driver.transport.settle().unwrap().is_some(), "it is idle and needs no thread");
        assert!(driver.transport.wake().is_err());
        driver.transport.halt();
        assert_eq!(driver.transport.queues.len(), 1);
        driver.send(0, &[Part::In(8)]);
        driver.move_to_idle(Rng::default());
        driver.wait(0);
    };
    apart(test);
}

#[test]
fn guest_that_breaks_its_device_in_a_loop_floods_no_log() {
    let mut driver = Driver::new(Rng::default());
    for _ in 0..200 {
        driver.jump(0, 65);
        driver.set(0x50, 0);
        driver.wait_broken();
        driver.set_up(!0);
    }
    assert!(
        driver.transport.failures.log.left_out() > 150,
        "{} lines were left out",
        driver.transport.failures.log.left_out()
    );
}

#[allow(unsafe_code)]
fn no_eventfd() -> Arc<EventFd> {
    use std::os::fd::{FromRawFd, IntoRawFd};
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    // SAFETY: the descriptor is open and has no other owner. Its only use is an epoll_ctl(2), which refuses
    // it.
    Arc::new(unsafe { EventFd::from_raw_fd(file.into_raw_fd()) })
}
