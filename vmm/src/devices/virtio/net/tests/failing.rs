//! Tests with a backend that fails: for one frame, for a while, or for good.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use super::pieces::Pieces;
use super::*;
use crate::paths::program::Program;
use crate::sync::lock;

/// Errors of the next reads.
#[derive(Debug, Default)]
struct Script {
    /// One error for each read.
    once: VecDeque<i32>,
    /// The error of every other read.
    always: Option<i32>,
    reads: usize,
}

/// A wire whose reads fail by a script.
#[derive(Debug)]
struct FailingBackend(Wire, Arc<Mutex<Script>>);

impl Backend for FailingBackend {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.descriptor()
    }

    fn offloads(&self) -> bool {
        true
    }

    fn receive(&mut self, into: Pieces<'_>) -> io::Result<usize> {
        let mut script = lock(&self.1);
        script.reads += 1;
        match script.once.pop_front().or(script.always) {
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None => self.0.receive(into),
        }
    }

    fn send(&mut self, frame: Pieces<'_>) -> io::Result<()> {
        self.0.send(frame)
    }
}

fn failing() -> (Driver, UnixDatagram, Arc<Mutex<Script>>) {
    let (end, other) = wire();
    let script = Arc::new(Mutex::new(Script::default()));
    let backend = Box::new(FailingBackend(end, Arc::clone(&script)));
    let net = Net::new(&config(NetBackend::Tap("unused".into())), mac::from_id("eth0"), backend);
    (Driver::new(net), other, script)
}

fn assert_frame_arrives(driver: &mut Driver, other: &UnixDatagram, number: usize) {
    other.send(&with_header(&frame(number, 60))).unwrap();
    driver.send(IN, &[Part::In(2000)]);
    assert_eq!(next_in(driver), frame(number, 60));
}

#[test]
fn frame_that_cannot_be_read_leaves_the_link_up() {
    let (mut driver, other, script) = failing();
    for (number, errno) in
        [libc::EINVAL, libc::EFAULT, libc::EIO, libc::ENOMEM, libc::ENOBUFS].into_iter().enumerate()
    {
        lock(&script).once.extend([errno; 3]);
        assert_frame_arrives(&mut driver, &other, number);
        assert_eq!(status(&mut driver), 1, "errno {errno}");
    }
    assert!(lock(&script).once.is_empty());
}

#[test]
fn errors_that_persist_are_retried_at_a_falling_rate_until_they_end() {
    let (mut driver, other, script) = failing();
    lock(&script).always = Some(libc::EIO);
    other.send(&with_header(&frame(7, 60))).unwrap();
    driver.send(IN, &[Part::In(2000)]);
    driver.until("the device backs off", |_| (lock(&script).reads > 12).then_some(()));
    std::thread::sleep(Duration::from_millis(300));
    let reads = lock(&script).reads;
    assert!(reads < 100, "{reads} reads of a tap that fails: the device spins");
    assert_eq!(status(&mut driver), 1);
    // Sending works all the while.
    driver.ask(OUT, &[Part::Out(&with_header(&frame(1, 60)))]);
    assert_eq!(next_on(&other), with_header(&frame(1, 60)));
    lock(&script).always = None;
    assert_eq!(next_in(&mut driver), frame(7, 60));
    assert_frame_arrives(&mut driver, &other, 8);
    assert_eq!(status(&mut driver), 1);
}

#[test]
fn deleted_tap_takes_the_link_down() {
    for errno in [libc::ENODEV, libc::EBADFD] {
        let (mut driver, other, script) = failing();
        lock(&script).once.push_back(errno);
        driver.send(IN, &[Part::In(2000)]);
        other.send(&with_header(&frame(0, 60))).unwrap();
        driver.until("the link is down", |driver| (status(driver) == 0).then_some(()));
        assert!(!driver.needs_reset());
    }
}

/// Returns a device whose passt is a bare socket that takes a few KiB.
fn at_slow_passt() -> (Driver, UnixStream) {
    let (socket, other) = UnixStream::pair().unwrap();
    socket.set_nonblocking(true).unwrap();
    let size = 4096_i32;
    // SAFETY: SO_SNDBUF reads one int.
    let set = unsafe {
        let len = size_of::<i32>() as u32;
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, (&raw const size).cast(), len)
    };
    assert_eq!(set, 0);
    other.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let passt = Passt::with(
        &super::super::passt::Options::default(),
        Program::new("true").start().unwrap(),
        socket,
        io::pipe().unwrap().0,
    );
    let net = Net::new(&config(NetBackend::Passt { forward: vec![] }), mac::from_id("eth0"), Box::new(passt));
    (Driver::new(net), other)
}

fn frame_of_stream(other: &mut UnixStream) -> Vec<u8> {
    let mut prefix = [0; 4];
    other.read_exact(&mut prefix).expect("the length of a frame");
    let mut bytes = vec![0; u32::from_be_bytes(prefix) as usize];
    other.read_exact(&mut bytes).expect("all of the frame");
    bytes
}

#[test]
fn tail_of_a_partly_written_frame_follows_without_another_send() {
    let (mut driver, mut other) = at_slow_passt();
    assert_eq!(frame_of_stream(&mut other).len(), 60, "the introduction");
    for number in 0..3 {
        driver.ask(OUT, &[Part::Out(&with_header(&frame(number, 60_000)))]);
        assert!(frame_of_stream(&mut other) == frame(number, 60_000), "frame {number}");
    }
    // The tail survives a pause, and precedes the announcement after it.
    driver.ask(OUT, &[Part::Out(&with_header(&frame(3, 60_000)))]);
    driver.transport.halt();
    driver.transport.resume().unwrap();
    assert!(frame_of_stream(&mut other) == frame(3, 60_000));
    assert_eq!(frame_of_stream(&mut other).len(), 60, "the introduction");
}

#[test]
fn wait_of_a_frames_tail_for_room_is_counted() {
    let (mut driver, mut other) = at_slow_passt();
    assert_eq!(frame_of_stream(&mut other).len(), 60, "the introduction");
    driver.wait_stalls("transmit", 0);
    driver.ask(OUT, &[Part::Out(&with_header(&frame(0, 60_000)))]);
    // The first turn after a pause begins with the tail.
    driver.transport.halt();
    driver.transport.resume().unwrap();
    driver.wait_stalls("transmit", 1);
    assert!(frame_of_stream(&mut other) == frame(0, 60_000));
}
