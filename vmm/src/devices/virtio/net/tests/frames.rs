//! Tests of frames: long and short, in odd pieces, more than fit, and invalid ones.

use vm_memory::{Bytes, GuestAddress};

use super::*;

/// Posts chains for the guest to receive into.
fn post(driver: &mut Driver, chains: usize, len: usize) {
    for _ in 0..chains {
        driver.send(IN, &[Part::In(len)]);
    }
}

#[test]
fn frames_arrive_unchanged_both_ways_however_they_are_cut() {
    let (end, other) = wire();
    let mut driver = Driver::new(net(end));
    for (number, len) in [14, 60, 61, 1514, 9000, 65_550].into_iter().enumerate() {
        let sent = with_header(&frame(number, len));
        for cuts in [vec![], vec![12], vec![5, 11, 13, 25], vec![1, 2, 3, 4]] {
            let mut parts = Vec::new();
            let mut from = 0;
            for cut in cuts.iter().chain([&sent.len()]) {
                parts.push(Part::Out(&sent[from..*cut]));
                from = *cut;
            }
            assert_eq!(driver.ask(OUT, &parts).len, 0);
            assert_eq!(next_on(&other), sent);

            let room = [&cuts[..], &[65_562]].concat();
            driver.send(IN, &room.iter().map(|len| Part::In(*len)).collect::<Vec<_>>());
            other.send(&sent).unwrap();
            assert_eq!(received(&mut driver), (1, frame(number, len)));
        }
    }
}

#[test]
fn long_frame_takes_as_many_chains_as_it_needs() {
    for wanted in [!EVENT_IDX, u64::MAX] {
        let (end, other) = wire();
        let mut driver = Driver::with_features(net(end), wanted);
        post(&mut driver, 8, 100);
        for (number, (len, chains)) in [(250, 3), (30, 1), (88, 1), (89, 2)].into_iter().enumerate() {
            other.send(&with_header(&frame(number, len))).unwrap();
            assert_eq!(received(&mut driver), (chains, frame(number, len)));
        }
        // One chain is left, which the header and 88 bytes fill.
        other.send(&with_header(&frame(9, 88))).unwrap();
        assert_eq!(received(&mut driver), (1, frame(9, 88)));
        // The first frame is longer than the device expects, the others are not.
        for number in 0..6 {
            post(&mut driver, 33, 2000);
            other.send(&with_header(&frame(number, 65_550))).unwrap();
            assert_eq!(received(&mut driver), (33, frame(number, 65_550)));
        }
    }
}

#[test]
fn chain_that_only_the_header_fills_is_used() {
    let (end, other) = wire();
    let mut driver = Driver::new(net(end));
    post(&mut driver, 2, 12);
    post(&mut driver, 2, 50);
    other.send(&with_header(&frame(1, 20))).unwrap();
    let first = driver.wait(IN);
    assert_eq!((first.len, first.written[10]), (12, 3));
    assert_eq!(driver.poll(IN).unwrap().len, 12);
    assert_eq!(content(&driver.poll(IN).unwrap()), frame(1, 20)[12..]);
}

#[test]
fn frames_wait_until_the_guest_has_buffers() {
    let (end, other) = wire();
    let mut driver = Driver::new(net(end));
    for number in 0..20 {
        other.send(&with_header(&frame(number, 100 + number))).unwrap();
    }
    driver.ask(OUT, &[Part::Out(&with_header(&frame(0, 60)))]);
    assert!(driver.poll(IN).is_none());
    driver.wait_stalls("receive", 1);
    for number in 0..20 {
        post(&mut driver, 1, 200);
        assert_eq!(next_in(&mut driver), frame(number, 100 + number));
    }
}

#[test]
fn frame_longer_than_all_buffers_waits_for_more_buffers() {
    let (end, other) = wire();
    let mut driver = Driver::new(net(end));
    post(&mut driver, 2, 1000);
    for number in 0..2 {
        other.send(&with_header(&frame(number, 4000))).unwrap();
    }
    post(&mut driver, 10, 1000);
    for number in 0..2 {
        let (chains, bytes) = received(&mut driver);
        assert!(bytes == frame(number, 4000) && chains == 5, "frame {number} in {chains}");
    }
    // Two chains are left; the device does not wait for more of them forever.
    other.send(&with_header(&frame(2, 4000))).unwrap();
    other.send(&with_header(&frame(3, 400))).unwrap();
    assert_eq!(received(&mut driver), (1, frame(3, 400)));
}

#[test]
fn waiting_frame_does_not_expire_during_a_pause() {
    use rustix::net::{RecvFlags, recv};
    let (end, other) = wire();
    let arrived = end.0.try_clone().unwrap();
    let mut driver = Driver::new(net(end));
    post(&mut driver, 2, 1000);
    other.send(&with_header(&frame(0, 4000))).unwrap();
    driver.until("the device has it", |_| recv(&arrived, &mut [0; 1], RecvFlags::PEEK).err());
    driver.transport.halt();
    std::thread::sleep(super::receive::PATIENCE);
    driver.transport.resume().unwrap();
    std::thread::sleep(super::receive::PATIENCE / 10);
    post(&mut driver, 3, 1000);
    let (chains, bytes) = received(&mut driver);
    assert!(bytes == frame(0, 4000) && chains == 5, "in {chains}");
}

#[test]
fn without_merging_each_frame_has_a_chain_of_its_own() {
    let (end, other) = wire();
    let mut driver = Driver::with_features(net(end), !(EVENT_IDX | feature::MRG_RXBUF));
    post(&mut driver, 2, 1000);
    other.send(&with_header(&frame(0, 989))).unwrap();
    other.send(&with_header(&frame(1, 988))).unwrap();
    assert_eq!(received(&mut driver), (1, frame(1, 988)), "the first was too long by one byte");
    other.send(&with_header(&frame(2, 60))).unwrap();
    assert_eq!(received(&mut driver), (1, frame(2, 60)));
}

#[test]
fn invalid_frame_does_not_reach_the_guest() {
    let (end, other) = wire();
    let mut driver = Driver::with_features(net(end), !(EVENT_IDX | feature::GUEST_TSO4));
    post(&mut driver, 40, 2000);
    let mut segments = with_header(&frame(0, 3000));
    segments[..10].copy_from_slice(&[1, 1, 54, 0, 0xb4, 5, 34, 0, 16, 0]);
    for wrong in [&[1][..], &PLAIN, &with_header(&frame(0, 13)), &with_header(&frame(0, 65_551)), &segments] {
        other.send(wrong).unwrap();
    }
    segments[1] = 4;
    other.send(&segments).unwrap();
    let first = driver.wait(IN);
    assert_eq!(first.written[..12], [1, 4, 54, 0, 0xb4, 5, 34, 0, 16, 0, 2, 0]);
    assert_eq!([&content(&first)[12..], &content(&driver.poll(IN).unwrap())].concat(), frame(0, 3000));
    assert!(driver.poll(IN).is_none() && !driver.needs_reset());
}

#[test]
fn full_backend_gets_later_frames_in_order() {
    let (end, other) = wire();
    let mut driver = Driver::new(net(end));
    let mut sent = 0;
    for round in 0..3 {
        // Far more than the socket takes.
        for _ in 0..60 {
            driver.send(OUT, &[Part::Out(&with_header(&frame(sent, 20_000)))]);
            sent += 1;
        }
        driver.until("the wire is full", |driver| driver.poll(OUT));
        for number in sent - 60..sent {
            assert_eq!(next_on(&other), with_header(&frame(number, 20_000)), "round {round}");
        }
        for _ in 1..60 {
            driver.wait(OUT);
        }
    }
    assert!(driver.poll(OUT).is_none());
}

#[test]
fn full_backend_loses_no_frames_over_a_snapshot() {
    let (end, other) = wire();
    let same = end.0.try_clone().unwrap();
    let mut driver = Driver::new(net(end));
    for number in 0..60 {
        driver.send(OUT, &[Part::Out(&with_header(&frame(number, 20_000)))]);
    }
    driver.wait_stalls("transmit", 1);
    driver.move_to(net(Wire(same)));
    for number in 0..60 {
        assert_eq!(next_on(&other), with_header(&frame(number, 20_000)));
        driver.wait(OUT);
    }
}

#[test]
fn invalid_frame_of_the_guest_is_dropped_and_its_chain_given_back() {
    let (end, other) = wire();
    let mut driver = Driver::with_features(net(end), !(EVENT_IDX | feature::HOST_TSO6));
    let mut segments = with_header(&frame(0, 3000));
    segments[..10].copy_from_slice(&[1, 4, 54, 0, 0xb4, 5, 34, 0, 16, 0]);
    let mut behind = with_header(&frame(0, 60));
    (behind[0], behind[6]) = (1, 59);
    let too_long = with_header(&frame(0, 0x1_0000 + 15));
    for wrong in [&[0; 5][..], &PLAIN, &with_header(&frame(0, 13)), &too_long, &segments, &behind] {
        assert_eq!(driver.ask(OUT, &[Part::Out(wrong)]).len, 0);
    }
    assert_eq!(driver.ask(OUT, &[Part::In(100)]).len, 0, "nothing to send at all");
    segments[1] = 1;
    driver.ask(OUT, &[Part::Out(&segments)]);
    assert_eq!(next_on(&other), segments, "and nothing before it");
    assert!(!driver.needs_reset());
}

#[test]
fn buffer_shorter_than_a_header_fails_the_device_until_its_reset() {
    for wrong in [&[Part::In(11)][..], &[Part::Out(&[0; 64])]] {
        let (end, other) = wire();
        let mut driver = Driver::new(net(end));
        driver.send(IN, wrong);
        driver.wait_broken();
        driver.set_up(!EVENT_IDX);
        post(&mut driver, 1, 100);
        other.send(&with_header(&frame(0, 60))).unwrap();
        assert_eq!(next_in(&mut driver), frame(0, 60));
    }
}

#[test]
fn frames_of_all_lengths_arrive_in_buffers_of_all_lengths() {
    for wanted in [!EVENT_IDX, u64::MAX] {
        let (end, other) = wire();
        let mut driver = Driver::with_features(net(end), wanted);
        let mut seed = 1_u64;
        let mut random = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % below
        };
        let mut posted = 0;
        for number in 0..300 {
            let mut sent = Vec::new();
            for _ in 0..=random(3) {
                let most = [100, 1500, 20_000][random(3)];
                sent.push(frame(number, 14 + random(most)));
                other.send(&with_header(sent.last().unwrap())).unwrap();
            }
            while posted < 56 {
                let len = [12, 13, 100, 1526, 4096, 9000][random(6)];
                match random(4) {
                    0 => driver.send(IN, &[Part::In(12), Part::In(len)]),
                    _ => driver.send(IN, &[Part::In(len)]),
                };
                posted += 2; // at most two descriptors of the 64
            }
            for (at, sent) in sent.into_iter().enumerate() {
                // The numbers are the same in each run, and the posted chains always suffice.
                let (chains, bytes) = received(&mut driver);
                assert!(bytes == sent, "frame {number}.{at} of {} bytes in {chains} chains", sent.len());
                posted -= 2 * usize::from(chains);
            }
        }
    }
}

#[test]
fn driver_is_interrupted_at_its_used_event() {
    let (end, other) = wire();
    let mut driver = Driver::with_features(net(end), u64::MAX);
    // As in testing.rs, with rings of 64 entries: `used_event` lies behind the available ring.
    let used_event = |driver: &Driver, queue: u64, index: u16| {
        let at = 0x1_0000 + queue * 0x8000 + 0x2000 + 4 + 2 * 64;
        driver.ram.guest().write_obj(index, GuestAddress(at)).unwrap();
    };
    let interrupted = |driver: &mut Driver| {
        // The completion of another frame: the turn that gave the last one is over.
        driver.ask(OUT, &[Part::Out(&with_header(&frame(0, 60)))]);
        driver.ask(OUT, &[Part::Out(&with_header(&frame(0, 60)))]);
        let is = driver.get(0x60) & 1 != 0;
        driver.set(0x64, 1);
        is
    };
    used_event(&driver, 1, 1000);
    used_event(&driver, 0, 4);
    post(&mut driver, 12, 100);
    for (number, wanted) in [false, true, false].into_iter().enumerate() {
        other.send(&with_header(&frame(number, 250))).unwrap();
        assert_eq!(received(&mut driver), (3, frame(number, 250)));
        assert_eq!(interrupted(&mut driver), wanted, "frame {number}");
    }
}

#[test]
fn frames_that_arrive_together_cause_one_interrupt() {
    for wanted in [!EVENT_IDX, u64::MAX] {
        let (end, other) = wire();
        let mut driver = Driver::with_features(net(end), wanted);
        driver.transport.halt();
        post(&mut driver, 20, 2000);
        driver.send(OUT, &[Part::Out(&with_header(&frame(0, 60)))]);
        for number in 0..20 {
            other.send(&with_header(&frame(number, 100 + number))).unwrap();
        }
        driver.transport.resume().unwrap();
        for number in 0..20 {
            assert_eq!(next_in(&mut driver), frame(number, 100 + number));
        }
        driver.wait(OUT);
        let count = |driver: &mut Driver| driver.transport.interrupt_line().read().ok();
        assert_eq!(driver.until("an interrupt", count), 1);
        driver.transport.halt();
        assert_eq!(count(&mut driver), None);
    }
}
