//! Tests with a driver, the device, and the other end of its wire.
#![allow(unsafe_code)]

use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use super::wire::{Wire, wire};
use super::*;
use crate::config::devices::RateLimit;
use crate::config::mac;
use crate::devices::bus::BusDevice;
use crate::devices::virtio::feature::EVENT_IDX;
use crate::devices::virtio::testing::{Driver, Part, Used};

mod failing;
mod frames;
mod idle;
mod link;
mod metadata;
mod passt;
mod policy;
mod tap;

const IN: usize = 0;
const OUT: usize = 1;
/// A header without offloads.
const PLAIN: [u8; header::LEN] = [0; header::LEN];

fn config(backend: NetBackend) -> NetConfig {
    NetConfig {
        id: "eth0".into(),
        backend,
        mac: None,
        mtu: None,
        offload: true,
        dns_forward: false,
        addresses: Vec::new(),
        receive_limit: RateLimit::default(),
        transmit_limit: RateLimit::default(),
    }
}

fn net(wire: Wire) -> Net {
    Net::new(&config(NetBackend::Tap("unused".into())), mac::from_id("eth0"), Box::new(wire))
}

/// Returns the bytes of a frame, different for each number.
fn frame(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251 + number * 31) as u8).collect()
}

fn with_header(frame: &[u8]) -> Vec<u8> {
    [&PLAIN, frame].concat()
}

/// Receives the next frame at the other end.
fn next_on(other: &UnixDatagram) -> Vec<u8> {
    let mut bytes = vec![0; 0x2_0000];
    let len = other.recv(&mut bytes).expect("a frame");
    bytes.truncate(len);
    bytes
}

/// Receives the next frame of the guest, from as many chains as its header says.
fn next_in(driver: &mut Driver) -> Vec<u8> {
    received(driver).1
}

fn received(driver: &mut Driver) -> (u16, Vec<u8>) {
    let first = driver.wait(IN);
    let chains = u16::from_le_bytes([first.written[10], first.written[11]]);
    let mut bytes = content(&first);
    for _ in 1..chains {
        // All chains of a frame come together.
        bytes.extend(content(&driver.poll(IN).expect("the rest of the frame")));
    }
    (chains, bytes.split_off(header::LEN))
}

fn content(used: &Used) -> Vec<u8> {
    used.written[..used.len as usize].to_vec()
}

fn status(driver: &mut Driver) -> u16 {
    let mut bytes = [0; 2];
    driver.transport.read(0x106, &mut bytes);
    u16::from_le_bytes(bytes)
}

#[test]
fn configuration_and_features_follow_the_config() {
    let mut asked = config(NetBackend::Tap("unused".into()));
    asked.mtu = Some(1400);
    let (end, _other) = wire();
    let net = Net::new(&asked, [2, 0, 0, 0, 0, 9], Box::new(end));
    assert_eq!(net.config(), [2, 0, 0, 0, 0, 9, 1, 0, 1, 0, 0x78, 5]);
    assert_eq!(net.features(), 0x1_99ab);
    asked.offload = false;
    let net = Net::new(&asked, [2, 0, 0, 0, 0, 9], Box::new(wire().0));
    assert_eq!(net.features(), 0x1_8028);
    (asked.mtu, asked.mac) = (Some(67), Some("02:00:00:00:00:01".into()));
    assert_eq!(Net::open(&asked).unwrap_err().to_string(), "networks: mtu 67 is less than 68");
    asked.mac = Some("03:00:00:00:00:01".into());
    assert!(Net::open(&asked).unwrap_err().to_string().contains("mac \"03:"));
}

#[test]
fn link_is_down_after_the_other_end_has_gone() {
    let (end, other) = wire();
    let mut driver = Driver::new(net(end));
    assert_eq!(status(&mut driver), 1);
    driver.send(IN, &[Part::In(2000)]);
    drop(other);
    driver.until("the link is down", |driver| (status(driver) == 0).then_some(()));
    driver.until("the driver is notified", |driver| (driver.get(0x60) & 2 != 0).then_some(()));
    for number in 0..100 {
        driver.ask(OUT, &[Part::Out(&with_header(&frame(number, 60)))]);
    }
    assert!(driver.poll(IN).is_none() && !driver.needs_reset());
    // After a restore with a connection the link is up again.
    let (end, other) = wire();
    driver.move_to(net(end));
    driver.until("the link is up", |driver| (status(driver) == 1).then_some(()));
    other.send(&with_header(&frame(1, 100))).unwrap();
    assert_eq!(next_in(&mut driver), frame(1, 100));
}

#[test]
fn snapshot_keeps_the_address_and_all_chains() {
    let (end, other) = wire();
    let same = end.0.try_clone().unwrap();
    let mut driver = Driver::new(net(end));
    let address = |driver: &mut Driver| {
        let mut bytes = [0; 6];
        driver.transport.read(0x100, &mut bytes);
        bytes
    };
    let before = address(&mut driver);
    for _ in 0..60 {
        driver.send(IN, &[Part::In(300)]);
    }
    for round in 0..10 {
        let (sent, read): (Vec<_>, Vec<_>) =
            (0..3).map(|at| (frame(6 * round + at, 500), frame(6 * round + at, 90))).unzip();
        for (to_guest, from_guest) in sent.iter().zip(&read) {
            other.send(&with_header(to_guest)).unwrap();
            driver.send(OUT, &[Part::Out(&with_header(from_guest))]);
        }
        let device = Wire(same.try_clone().unwrap());
        driver.move_to(Net::new(&config(NetBackend::Tap("unused".into())), [2; 6], Box::new(device)));
        assert_eq!(address(&mut driver), before);
        for (to_guest, from_guest) in sent.into_iter().zip(read) {
            assert_eq!(received(&mut driver), (2, to_guest));
            assert_eq!(next_on(&other), with_header(&from_guest));
            driver.wait(OUT);
            driver.send(IN, &[Part::In(300)]);
            driver.send(IN, &[Part::In(300)]);
        }
    }
}
