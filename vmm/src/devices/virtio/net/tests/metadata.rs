//! The metadata service beside a backend.

use std::net::Ipv4Addr;

use serde_json::json;

use super::*;
use crate::config::devices::Bucket;
use crate::config::metadata::MetadataConfig;

const SERVICE: [u8; 4] = [169, 254, 169, 254];

fn serving(wire: Wire, config: &NetConfig) -> Net {
    let mut net = Net::new(config, mac::from_id("eth0"), Box::new(wire));
    let metadata = MetadataConfig::new(["eth0"]);
    metadata.store.put(json!({"a": "b"})).unwrap();
    net.serve_metadata(&metadata);
    net
}

/// A question for the hardware address of `target`.
fn question(target: [u8; 4]) -> Vec<u8> {
    let own = [2, 0, 0, 0, 0, 1];
    let start = [0, 1, 8, 0, 6, 4, 0, 1];
    [&[0xff; 6], &own[..], &[8, 6], &start, &own, &[10, 0, 0, 2], &[0; 6], &target, &[0; 18]].concat()
}

/// A segment that opens a connection to `target`.
fn opening(target: [u8; 4]) -> Vec<u8> {
    let ip = [0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 2];
    let tcp = [4, 1, 0, 80, 0, 0, 0, 9, 0, 0, 0, 0, 0x50, 2, 0x10, 0, 0, 0, 0, 0];
    [&[2; 6][..], &[2, 0, 0, 0, 0, 1], &[8, 0], &ip, &target, &tcp].concat()
}

fn send_all(driver: &mut Driver, frames: &[Vec<u8>]) {
    for frame in frames {
        driver.send(OUT, &[Part::Out(&with_header(frame))]);
    }
    frames.iter().for_each(|_| drop(driver.wait(OUT)));
}

#[test]
fn frames_for_the_service_are_answered_and_others_reach_the_backend() {
    let (end, other) = wire();
    let mut driver = Driver::new(serving(end, &config(NetBackend::Tap("unused".into()))));
    for _ in 0..4 {
        driver.send(IN, &[Part::In(2000)]);
    }
    let elsewhere = [169, 254, 169, 253];
    let frames = [question(SERVICE), question(elsewhere), opening(SERVICE), opening(elsewhere), frame(1, 60)];
    send_all(&mut driver, &frames);
    let answer = next_in(&mut driver);
    assert_eq!((&answer[..6], &answer[12..14], answer[21]), (&[2, 0, 0, 0, 0, 1][..], &[8, 6][..], 2));
    let answer = next_in(&mut driver);
    assert_eq!((&answer[26..30], answer[47]), (&SERVICE[..], 0x12), "SYN and ACK from the service");
    for expected in [question(elsewhere), opening(elsewhere), frame(1, 60)] {
        assert_eq!(next_on(&other), with_header(&expected));
    }
    other.send(&with_header(&frame(2, 100))).unwrap();
    assert_eq!(next_in(&mut driver), frame(2, 100));
}

#[test]
fn device_without_the_service_sends_all_frames_to_the_backend() {
    let (end, other) = wire();
    let mut driver = Driver::new(net(end));
    let frames = [question(SERVICE), opening(SERVICE)];
    send_all(&mut driver, &frames);
    for expected in frames {
        assert_eq!(next_on(&other), with_header(&expected));
    }
}

#[test]
fn frame_in_pieces_is_recognized() {
    let (end, _other) = wire();
    let mut driver = Driver::new(serving(end, &config(NetBackend::Tap("unused".into()))));
    driver.send(IN, &[Part::In(2000)]);
    let whole = with_header(&question(SERVICE));
    let pieces = [&whole[..5], &whole[5..20], &whole[20..53], &whole[53..]];
    driver.send(OUT, &pieces.map(Part::Out));
    driver.wait(OUT);
    assert_eq!(next_in(&mut driver)[21], 2, "an answer of ARP");
}

#[test]
fn answer_waits_for_a_buffer_of_the_guest() {
    let (end, _other) = wire();
    let mut driver = Driver::new(serving(end, &config(NetBackend::Tap("unused".into()))));
    send_all(&mut driver, &[question(SERVICE)]);
    assert!(driver.poll(IN).is_none());
    driver.send(IN, &[Part::In(2000)]);
    assert_eq!(next_in(&mut driver)[21], 2, "an answer of ARP");
}

#[test]
fn rate_limits_do_not_count_the_service() {
    let (end, other) = wire();
    let mut limited = config(NetBackend::Tap("unused".into()));
    let one_an_hour = Bucket { size: 1, refill_time: 3_600_000, one_time_burst: 0 };
    limited.transmit_limit.ops = Some(one_an_hour);
    limited.receive_limit.ops = Some(one_an_hour);
    let mut driver = Driver::new(serving(end, &limited));
    for _ in 0..20 {
        driver.send(IN, &[Part::In(2000)]);
        send_all(&mut driver, &[question(SERVICE)]);
        next_in(&mut driver);
    }
    send_all(&mut driver, &[frame(1, 60)]);
    assert_eq!(next_on(&other), with_header(&frame(1, 60)));
}

#[test]
fn short_frames_and_bad_headers_harm_nobody() {
    let (end, _other) = wire();
    let mut driver = Driver::new(serving(end, &config(NetBackend::Tap("unused".into()))));
    let whole = with_header(&opening(SERVICE));
    for len in 1..whole.len() {
        driver.send(OUT, &[Part::Out(&whole[..len])]);
        driver.wait(OUT);
    }
    let mut offloaded = whole;
    offloaded[1] = 0xff; // a kind of segmentation that no device has
    driver.send(OUT, &[Part::Out(&offloaded)]);
    driver.wait(OUT);
    driver.send(IN, &[Part::In(2000)]);
    send_all(&mut driver, &[question(SERVICE)]);
    assert_eq!(next_in(&mut driver)[21], 2, "an answer of ARP");
    assert!(driver.poll(IN).is_none() && !driver.needs_reset());
}

#[test]
fn restored_device_resets_connections_of_before() {
    let (end, _other) = wire();
    let networks = config(NetBackend::Tap("unused".into()));
    let mut driver = Driver::new(serving(end, &networks));
    for _ in 0..2 {
        driver.send(IN, &[Part::In(2000)]);
    }
    send_all(&mut driver, &[opening(SERVICE)]);
    assert_eq!(next_in(&mut driver)[47], 0x12);
    // A closed other end would break the device before it answers, perhaps.
    let (end, _other) = wire();
    driver.move_to(serving(end, &networks));
    let mut segment = opening(SERVICE);
    segment[47] = 0x10; // ACK
    send_all(&mut driver, &[segment]);
    let answer = next_in(&mut driver);
    assert_eq!(
        (Ipv4Addr::from(<[u8; 4]>::try_from(&answer[26..30]).unwrap()), answer[47]),
        (SERVICE.into(), 4)
    );
}
