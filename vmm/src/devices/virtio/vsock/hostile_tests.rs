//! Tests of the device with a guest that violates the protocol.

use std::io::{Read, Write};

use super::super::testing::Part;
use super::packet;
use super::packet::{PacketHeader, op};
use super::testing::{TestGuest, noise, read_to_end};
use super::{RX, TX};

#[test]
fn packets_to_no_connection_are_refused_once() {
    let mut guest = TestGuest::new();
    for op in [op::RESPONSE, op::SHUTDOWN, op::RW, op::CREDIT_UPDATE, op::CREDIT_REQUEST, 0, 8, 0xffff] {
        guest.send_op(op, (1, 2));
        guest.expect(op::RST);
    }
    guest.send_op(op::RST, (1, 2));
    guest.expect_silence();
}

#[test]
fn packets_with_wrong_addresses_are_ignored_or_refused() {
    let mut guest = TestGuest::new();
    let listener = guest.listen(80);
    let right = guest.header(op::REQUEST, (80, 1));
    for dst_cid in [0, 1, 3, 4, 1 << 32 | 2, u64::MAX] {
        guest.send(PacketHeader { dst_cid, ..right }, &[]);
    }
    guest.expect_silence();
    for socket_type in [0, 2, 0xffff] {
        guest.send(PacketHeader { socket_type, ..right }, &[]);
        assert_eq!(guest.expect(op::RST).socket_type, socket_type);
    }
    guest.send(PacketHeader { src_cid: 9, ..right }, &[]);
    let (refusal, _) = guest.receive();
    assert_eq!((refusal.op, refusal.dst_cid), (op::RST, 9));
    guest.connect(&listener, (80, 1));
}

#[test]
fn invalid_packets_end_the_connection() {
    let wrong = |guest: &TestGuest, ports| {
        let header = |op, len| PacketHeader { len, ..guest.header(op, ports) };
        [
            header(op::REQUEST, 0),
            header(op::RESPONSE, 0),
            header(0, 0),
            header(8, 0),
            header(op::RW, 5),
            header(op::RW, u32::MAX),
            header(op::CREDIT_UPDATE, 1 << 20),
        ]
    };
    let mut guest = TestGuest::new();
    for case in 0..7 {
        let (mut host, ports) = guest.accept(1);
        let header = wrong(&guest, ports)[case];
        guest.send(header, b"four");
        guest.expect(op::RST);
        assert_eq!(read_to_end(&mut host), b"", "{header:?}");
    }
    // The same before the connection is accepted.
    let mut host = guest.call("CONNECT 1\n");
    let request = guest.expect(op::REQUEST);
    guest.send_data((request.src_port, 1), b"too soon");
    guest.expect(op::RST);
    assert_eq!(read_to_end(&mut host), b"");
    guest.expect_silence();
}

#[test]
fn impossible_credit_stops_only_the_data() {
    let mut guest = TestGuest::new();
    let (mut host, ports) = guest.accept(1);
    host.write_all(b"data").unwrap();
    assert_eq!(guest.receive_data(4), b"data");
    // The guest claims to have forwarded more than it got.
    for fwd_cnt in [5, 1000, u32::MAX / 2] {
        let lie = PacketHeader { fwd_cnt, buf_alloc: 10, ..guest.header(op::CREDIT_UPDATE, ports) };
        guest.send(lie, &[]);
    }
    guest.drain();
    host.write_all(b"more").unwrap();
    let responses = guest.responses();
    assert!(responses.iter().all(|response| response.op == op::CREDIT_REQUEST), "{responses:?}");
    let truth = PacketHeader { fwd_cnt: 4, ..guest.header(op::CREDIT_UPDATE, ports) };
    guest.send(truth, &[]);
    while guest.receive().0.op != op::RW {}
}

/// Packets that are nearly valid, in an invalid order.
#[test]
fn random_packets_do_not_fail_the_device() {
    let mut guest = TestGuest::new();
    let listener = guest.listen(80);
    listener.set_nonblocking(true).unwrap();
    let mut hosts = Vec::new();
    for (number, dice) in noise(7, 8 * 5000).chunks(8).enumerate() {
        if number % 50 == 0 {
            hosts.push(guest.call(&format!("CONNECT {}\n", number % 4)));
            hosts.extend(listener.accept().map(|(host, _)| host));
            hosts.drain(..hosts.len().saturating_sub(10));
        }
        let host = [80, 1 << 30, (1 << 30) + u32::from(dice[0] % 64)][usize::from(dice[0] % 3)];
        let mut header = guest.header(u16::from(dice[1] % 9), (host, u32::from(dice[2] % 4)));
        header.flags = u32::from(dice[3] % 5);
        header.fwd_cnt = u32::from(dice[4]) * u32::from(dice[5] % 2);
        let payload = noise(number as u32, usize::from(dice[6]) * 8);
        header.len = payload.len() as u32 + u32::from(dice[7] / 250);
        guest.send(header, &payload);
        while guest.driver.poll(RX).is_some() {
            guest.post(1);
        }
    }
    guest.responses();
    assert!(!guest.driver.needs_reset());
}

#[test]
fn invalid_chains_fail_the_device() {
    let mut guest = TestGuest::new();
    guest.driver.send(TX, &[Part::Out(&[0; packet::LEN - 1])]);
    guest.driver.wait_broken();

    let mut guest = TestGuest::with_buffers(&[packet::LEN], 1);
    guest.send_op(op::RW, (1, 1));
    guest.driver.wait_broken();
}

#[test]
fn failed_device_works_again_after_a_reset() {
    let mut guest = TestGuest::new();
    let (mut host, _) = guest.accept(1);
    guest.driver.send(TX, &[Part::In(4)]);
    guest.driver.wait_broken();
    host.write_all(b"to nobody").unwrap();
    guest.driver.set_up(!0);
    assert!(!matches!(host.read(&mut [0]), Ok(1)), "the connection is closed");
    guest.post(32);
    guest.accept(1);
}

#[test]
fn guest_that_takes_no_packets_misses_only_old_refusals() {
    let mut guest = TestGuest::with_buffers(&[4096], 0);
    let mut hosts: Vec<_> = (0..20).map(|port| guest.call(&format!("CONNECT {port}\n"))).collect();
    for number in 0..3000 {
        guest.send_op(op::RW, (number, 1));
    }
    guest.drain();
    guest.post(32);
    let (mut refused, mut asked) = (Vec::new(), 0);
    while asked < 20 {
        match guest.receive().0 {
            PacketHeader { op: op::REQUEST, src_port, dst_port, .. } => {
                asked += 1;
                guest.send_op(op::RST, (src_port, dst_port));
            }
            PacketHeader { op: op::RST, src_port, .. } => refused.push(src_port),
            header => panic!("{header:?}"),
        }
    }
    assert_eq!((refused.len(), refused.last()), (1024, Some(&2999)));
    hosts.iter_mut().for_each(|host| assert_eq!(read_to_end(host), b""));
}
