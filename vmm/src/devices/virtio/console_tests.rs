//! The console with a guest at one end and real clients at the other.

use std::io::{Read as _, Write as _};
use std::sync::{Arc, Mutex};

use super::super::testing::{Driver, Part};
use super::*;
use crate::config::SocketPath;
use crate::devices::virtio::feature::EVENT_IDX;
use crate::devices::virtio::testing::MEMORY;
use crate::memory::backing::Backing;
use crate::memory::ram::GuestRam;
use crate::sync::lock;
use crate::testing::ScratchDir;

/// A console's configuration, and the directory of its socket.
fn config() -> (ScratchDir, ConsoleConfig) {
    let scratch = ScratchDir::new();
    let socket = scratch.join("console").into();
    (scratch, ConsoleConfig { socket })
}

fn guest(config: &ConsoleConfig) -> Driver {
    Driver::new(VirtioConsole::open(config).unwrap())
}

/// A client with a time limit for reads.
fn client(socket: &SocketPath) -> UnixStream {
    let stream = UnixStream::connect(socket.as_path()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

fn hears(client: &mut UnixStream, expected: &[u8]) {
    let mut bytes = vec![0; expected.len()];
    client.read_exact(&mut bytes).unwrap();
    assert!(bytes == expected, "{:?}", String::from_utf8_lossy(&bytes));
}

fn is_closed(client: &mut UnixStream) -> bool {
    matches!(client.read(&mut [0]), Ok(0))
}

/// Writes a line as the guest and waits until the client reads it: the console has accepted the client then.
fn greet(driver: &mut Driver, client: &mut UnixStream) {
    driver.ask(TRANSMIT, &[Part::Out(b"login: ")]);
    hears(client, b"login: ");
}

#[test]
fn console_carries_data_both_ways() {
    for features in [!EVENT_IDX, !0] {
        let (_scratch, config) = config();
        let mut driver = Driver::with_features(VirtioConsole::open(&config).unwrap(), features);
        let mut client = client(&config.socket);
        greet(&mut driver, &mut client);
        for round in 0..200u8 {
            client.write_all(&[round; 10]).unwrap();
            let used = driver.ask(RECEIVE, &[Part::In(4), Part::In(60)]);
            assert_eq!((used.len, &used.written[..10]), (10, &[round; 10][..]));
            driver.ask(TRANSMIT, &[Part::Out(&[round]), Part::Out(b"ok")]);
            hears(&mut client, &[round, b'o', b'k']);
        }
    }
}

#[test]
fn output_without_a_client_is_kept_for_the_first() {
    let (_scratch, config) = config();
    let mut driver = guest(&config);
    driver.ask(TRANSMIT, &[Part::Out(b"booting\n")]);
    driver.ask(TRANSMIT, &[Part::Out(b"booted\n")]);
    let mut first = client(&config.socket);
    hears(&mut first, b"booting\nbooted\n");
    drop(first);
    let mut second = client(&config.socket);
    greet(&mut driver, &mut second);
}

#[test]
fn last_output_is_kept_if_there_is_too_much() {
    let (_scratch, config) = config();
    let mut driver = guest(&config);
    for letter in b'a'..=b'z' {
        driver.ask(TRANSMIT, &[Part::Out(&[letter; 8000])]);
    }
    let mut client = client(&config.socket);
    let mut kept = vec![0; BACKLOG];
    client.read_exact(&mut kept).unwrap();
    let last: Vec<u8> = (b'a'..=b'z').flat_map(|letter| [letter; 8000]).collect();
    assert!(kept == last[last.len() - BACKLOG..]);
    greet(&mut driver, &mut client);
}

#[test]
fn input_waits_until_the_guest_has_a_buffer() {
    let (_scratch, config) = config();
    let mut driver = guest(&config);
    let mut client = client(&config.socket);
    greet(&mut driver, &mut client);
    client.write_all(&[7; 100]).unwrap();
    driver.ask(RECEIVE, &[Part::Out(b"no room at all")]);
    assert_eq!(driver.ask(RECEIVE, &[Part::In(60)]).len, 60);
    assert_eq!(driver.ask(RECEIVE, &[Part::In(60)]).len, 40);
    let head = driver.send(RECEIVE, &[Part::In(60)]);
    greet(&mut driver, &mut client);
    assert_eq!(driver.poll(RECEIVE), None);
    client.write_all(b"x").unwrap();
    let used = driver.wait(RECEIVE);
    assert_eq!((used.head, used.len, used.written[0]), (head, 1, b'x'));
}

#[test]
fn second_client_is_closed() {
    let (_scratch, config) = config();
    let mut driver = guest(&config);
    let mut first = client(&config.socket);
    greet(&mut driver, &mut first);
    assert!(is_closed(&mut client(&config.socket)));
    greet(&mut driver, &mut first);
}

#[test]
fn client_may_follow_one_that_left() {
    let (_scratch, config) = config();
    let mut driver = guest(&config);
    // Clients leave while the guest has no buffers, while it has some, and with unread input.
    for round in 0..3 {
        let mut leaving = client(&config.socket);
        greet(&mut driver, &mut leaving);
        match round {
            1 => drop(driver.send(RECEIVE, &[Part::In(8)])),
            2 => leaving.write_all(&[1; 100]).unwrap(),
            _ => {}
        }
        drop(leaving);
    }
    assert_eq!(driver.wait(RECEIVE).len, 8);
    let mut next = client(&config.socket);
    greet(&mut driver, &mut next);
    next.write_all(b"hi").unwrap();
    driver.until("its input comes", |driver| {
        (driver.ask(RECEIVE, &[Part::In(8)]).written[..2] == *b"hi").then_some(())
    });
}

#[test]
fn device_sleeps_while_it_can_do_nothing() {
    let (_scratch, config) = config();
    let ram = GuestRam::reserve(MEMORY).unwrap();
    Backing::Fresh.map(&ram).unwrap();
    let console = Arc::new(Mutex::new(VirtioConsole::open(&config).unwrap()));
    let mut driver = Driver::with_memory(console.clone(), ram, !EVENT_IDX);
    let is_woken = || {
        let console = lock(&console);
        poll(&mut [PollFd::new(&console.ready, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0
    };
    let mut client = client(&config.socket);
    greet(&mut driver, &mut client);
    driver.until("it has looked", |_| (!is_woken()).then_some(()));
    client.write_all(b"for a guest without buffers").unwrap();
    assert!(!is_woken());
    drop(client);
    assert!(!is_woken());
}

#[test]
fn client_that_shut_down_sending_still_receives() {
    let (_scratch, config) = config();
    let mut driver = guest(&config);
    let mut client = client(&config.socket);
    client.write_all(b"uptime\n").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(&driver.ask(RECEIVE, &[Part::In(64)]).written[..7], b"uptime\n");
    driver.send(RECEIVE, &[Part::In(64)]);
    greet(&mut driver, &mut client);
}

#[test]
fn client_that_never_reads_does_not_stop_the_guest() {
    let (_scratch, config) = config();
    let mut driver = guest(&config);
    let mut deaf = client(&config.socket);
    greet(&mut driver, &mut deaf);
    for _ in 0..400 {
        driver.ask(TRANSMIT, &[Part::Out(&[b'-'; 8000])]);
    }
    driver.ask(TRANSMIT, &[Part::Out(b"the end")]);
    // When the client reads at last, it gets the beginning and the end.
    let mut heard = Vec::new();
    while !heard.ends_with(b"the end") {
        let mut bytes = [0; 8000];
        let got = deaf.read(&mut bytes).unwrap();
        assert!(got > 0);
        heard.extend(&bytes[..got]);
    }
    assert!(heard.len() > BACKLOG && heard.len() < 400 * 8000, "{}", heard.len());
}

#[test]
fn console_resumes_in_another_process() {
    let ((_old, before), (_new, after)) = (config(), config());
    let mut driver = guest(&before);
    let mut old = client(&before.socket);
    greet(&mut driver, &mut old);
    let head = driver.send(RECEIVE, &[Part::In(8)]);
    driver.move_to(VirtioConsole::open(&after).unwrap());
    assert!(is_closed(&mut old) && !before.socket.as_path().exists());

    let mut new = client(&after.socket);
    greet(&mut driver, &mut new);
    new.write_all(b"on").unwrap();
    let used = driver.wait(RECEIVE);
    assert_eq!((used.head, &used.written[..2]), (head, &b"on"[..]));
    drop(driver);
    assert!(!after.socket.as_path().exists());
}

#[test]
fn socket_in_use_is_refused_by_its_path() {
    let (_scratch, config) = config();
    let _first = VirtioConsole::open(&config).unwrap();
    let error = crate::error::report(&VirtioConsole::open(&config).unwrap_err());
    assert!(error.starts_with(&format!("cannot listen at {}", config.socket)), "{error}");
}
