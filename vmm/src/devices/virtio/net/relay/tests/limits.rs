//! Bounds of connections and bytes, and wires that lose frames.

use std::time::Duration;

use smoltcp::socket::tcp::State;
use smoltcp::wire::{Ipv4Packet, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber};

use super::super::connection::OPENING;
use super::super::end::{BufferSizes, TcpChecksum, TcpEnd};
use super::super::frame::{TcpFrame, frame_of};
use super::super::{MOST_CONNECTIONS, MOST_RESETS};
use super::bench::{Bench, GUEST_MAC, PLAIN, ROUTER_MAC, V4, V6, connecting, ends_of, get, packet};

/// A frame that opens a connection from this port.
fn syn(bench: &Bench, port: u16) -> Vec<u8> {
    let ends = ends_of(V4, port);
    let mut guest = connecting(ends, bench.now);
    guest.work(bench.now);
    frame_of(&guest.next_packet().unwrap(), (GUEST_MAC, ROUTER_MAC), ends.0.0)
}

#[test]
fn connection_beyond_the_most_is_reset() {
    let mut bench = Bench::new(V4);
    for port in 1..=MOST_CONNECTIONS as u16 {
        let frame = syn(&bench, port);
        bench.receive_from_guest(&frame);
        bench.receive_from_guest(&frame);
    }
    assert_eq!(bench.relays.next_to_guest(), None);
    for port in 5000..5000 + 2 * MOST_RESETS as u16 {
        bench.receive_from_guest(&syn(&bench, port));
    }
    let reset = bench.relays.next_to_guest().unwrap();
    let reset = TcpFrame::parse(&reset).unwrap();
    assert!(reset.flags.rst && reset.target.1 == 5000);
    assert_eq!(std::iter::from_fn(|| bench.relays.next_to_guest()).count(), MOST_RESETS - 1);
    let counts = bench.counts();
    assert_eq!((counts.opened, counts.refused), (MOST_CONNECTIONS as u64, 2 * MOST_RESETS as u64));
    let ports = std::iter::from_fn(|| bench.relays.next_to_far());
    let mut ports: Vec<_> = ports.map(|frame| TcpFrame::parse(&frame).unwrap().source.1).collect();
    ports.sort_unstable();
    assert_eq!(ports, (1..=MOST_CONNECTIONS as u16).collect::<Vec<_>>(), "one SYN of each");
}

#[test]
fn guest_s_syn_that_the_stack_does_not_take_holds_no_place() {
    let mut bench = Bench::new(V4);
    let mut frame = syn(&bench, 4000);
    // An option whose length the stack refuses, in place of the others.
    let options = 14 + 20 + 20;
    frame[options..].fill(1);
    frame[options..options + 4].copy_from_slice(&[2, 3, 0, 1]);
    assert!(bench.give(&frame, TcpChecksum::Trusted));
    bench.settle_without_guest();
    assert_eq!((bench.server.state(), bench.is_known()), (State::Established, true));
    bench.now += OPENING;
    assert!(bench.relays.next_work(bench.now).is_some());
    bench.settle_without_guest();
    assert!(bench.server.end.is_reset() && !bench.is_known());
}

#[test]
fn ended_connections_make_room() {
    let mut bench = Bench::new(V4);
    for port in 1..=3 * MOST_CONNECTIONS as u16 {
        let mut next = Bench::new(V4);
        next.ends = ends_of(V4, port);
        next.guest.end = connecting(next.ends, next.now);
        std::mem::swap(&mut next.relays, &mut bench.relays);
        (next.guest.ends, next.server.ends) = (true, true);
        next.settle();
        assert!(next.is_known() && next.guest.end.is_over(), "{port}");
        bench = next;
    }
    assert_eq!(bench.counts().refused, 0);
}

#[test]
fn large_response_passes_over_bad_wires() {
    for family in [V4, V6] {
        let mut bench = Bench::new(family);
        for wire in [&mut bench.guest_wire, &mut bench.far_wire] {
            (wire.lost, wire.repeated, wire.reordered) = (3, 3, 3);
        }
        let response: Vec<u8> = (0..1_u32 << 18).flat_map(u32::to_le_bytes).collect();
        let request = get("a.test").repeat(300);
        bench.guest.unsent.extend(request.bytes());
        bench.server.unsent.extend(&response);
        let mut seconds = 0;
        while bench.guest.got.len() < response.len() || bench.server.got.len() < request.len() {
            bench.pass(Duration::from_secs(1));
            seconds += 1;
            assert!(seconds < 3600, "{} {}", bench.guest.got.len(), bench.server.got.len());
        }
        assert!(bench.guest.got == response && bench.requests() == request);
        assert_eq!(bench.judged.len(), 300);
    }
}

#[test]
fn bytes_wait_while_a_side_reads_none() {
    let mut bench = Bench::connected();
    bench.server.reads = false;
    let head = "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 500000\r\n\r\n";
    bench.guest.unsent.extend(head.bytes());
    bench.guest.unsent.extend(vec![b'x'; 500_000]);
    bench.pass(Duration::from_secs(10));
    // The rest fills the buffers of the guest, of both ends, and of the server.
    assert!(bench.guest.unsent.len() > 500_000 - 4 * 0x1_0000);
    bench.server.reads = true;
    bench.pass(Duration::from_secs(60));
    assert_eq!(bench.server.got.len(), head.len() + 500_000);
    // A guest that takes no frames: they do not pile up.
    bench.server.unsent.extend(vec![b'y'; 500_000]);
    for _ in 0..100 {
        bench.server.end.work(bench.now);
        bench.relays.work(bench.now, &mut |_, _| Ok(()));
        bench.now += Duration::from_secs(1);
    }
    assert!(std::iter::from_fn(|| bench.relays.next_to_guest()).count() <= 64);
}

#[test]
fn addresses_of_no_host_make_no_end() {
    let now = std::time::Instant::now();
    let sizes = BufferSizes { receive: 1, send: 1 };
    for (own, peer) in [
        (("0.0.0.0", 1), ("10.0.0.2", 1)),
        (("10.0.0.2", 0), ("10.0.0.3", 1)),
        (("10.0.0.2", 1), ("10.0.0.3", 0)),
        (("10.0.0.2", 1), ("255.255.255.255", 1)),
        (("10.0.0.2", 1), ("224.0.0.1", 1)),
        (("224.0.0.1", 1), ("10.0.0.2", 1)),
        (("10.0.0.2", 1), ("2001:db8::1", 1)),
        (("2001:db8::1", 1), ("ff02::1", 1)),
        (("::", 1), ("2001:db8::1", 1)),
    ] {
        let [own, peer] = [own, peer].map(|(address, port)| (address.parse().unwrap(), port));
        assert!(TcpEnd::connecting(own, peer, sizes, 1500, 1, now).is_none(), "{own:?} {peer:?}");
    }
    // The guest is told at once.
    let mut bench = Bench::new(V4);
    let mut frame = syn(&bench, 1);
    frame[14 + 16..14 + 20].copy_from_slice(&[255; 4]);
    frame[14 + 10..14 + 12].copy_from_slice(&[0; 2]);
    let sum: u32 = frame[14..34].chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[14 + 10..14 + 12].copy_from_slice(&sum.to_be_bytes());
    assert!(bench.give(&frame, TcpChecksum::Trusted));
    assert!(bench.relays.next_to_guest().is_some() && bench.relays.next_to_far().is_none());
}

#[test]
fn window_stays_in_a_buffer_of_any_size() {
    let (now, (guest, far)) = (std::time::Instant::now(), ends_of(V4, 1));
    let sizes = BufferSizes { receive: 1 << 20, send: 1 };
    let mut end = TcpEnd::listening(far, sizes, 1500, 1, now).unwrap();
    let mut send = |segment: &TcpRepr<'_>| {
        end.receive(&packet(guest, far, segment), TcpChecksum::Verified, now);
        let answer = end.next_packet().unwrap();
        let answer = Ipv4Packet::new_checked(&answer[..]).unwrap();
        TcpPacket::new_checked(answer.payload()).unwrap().seq_number()
    };
    let first = send(&TcpRepr { control: TcpControl::Syn, window_scale: Some(7), ..PLAIN });
    for at in [60_000, 100_000, 200_000, 2_000_000] {
        let (seq_number, ack_number) = (TcpSeqNumber(at), Some(first + 1));
        send(&TcpRepr { seq_number, ack_number, payload: &[0; 10_000], ..PLAIN });
    }
}

#[test]
fn closed_window_of_a_peer_that_has_all_bytes_is_not_probed() {
    let (now, (guest, far)) = (std::time::Instant::now(), ends_of(V4, 1));
    let sizes = BufferSizes { receive: 100, send: 100 };
    let mut end = TcpEnd::listening(far, sizes, 1500, 1, now).unwrap();
    let syn = packet(guest, far, &TcpRepr { control: TcpControl::Syn, ..PLAIN });
    end.receive(&syn, TcpChecksum::Verified, now);
    let answer = end.next_packet().unwrap();
    let answer = Ipv4Packet::new_checked(&answer[..]).unwrap();
    let first = TcpPacket::new_checked(answer.payload()).unwrap().seq_number();
    let confirm = |end: &mut TcpEnd, ack: usize, now| {
        let (seq_number, ack_number) = (TcpSeqNumber(1), Some(first + ack));
        let segment = TcpRepr { seq_number, ack_number, window_len: 0, ..PLAIN };
        end.receive(&packet(guest, far, &segment), TcpChecksum::Verified, now);
    };
    confirm(&mut end, 1, now);
    end.socket_mut().send_slice(b"x").unwrap();
    end.socket_mut().close();
    end.work(now);
    let later = now + Duration::from_secs(2);
    // The byte, of which the end has sent a probe, and the FIN that it has not sent.
    confirm(&mut end, 3, later);
    assert_eq!(end.socket().state(), State::FinWait2);
    while end.next_packet().is_some() {}
    end.work(later + Duration::from_secs(60));
    let packets = std::iter::from_fn(|| end.next_packet()).count();
    assert!(packets <= 1 && end.next_work(later + Duration::from_secs(60)).is_none(), "{packets}");
}

#[test]
fn silent_guest_that_never_confirms_is_given_up() {
    let mut bench = Bench::new(V4);
    let frame = syn(&bench, 4000);
    bench.receive_from_guest(&frame);
    bench.settle_without_guest();
    assert_eq!(bench.server.state(), State::Established);
    for _ in 0..31 {
        bench.now += Duration::from_secs(1);
        bench.settle_without_guest();
    }
    assert!(bench.server.end.is_reset());
}
