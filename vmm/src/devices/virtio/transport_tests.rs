//! The transport with a driver that keeps the rules, and with one that breaks them.

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::rng::Rng;
use super::super::testing::{Driver, INDIRECT, MEMORY, NEXT, Part, WRITE};
use super::*;

#[test]
fn driver_reads_the_identity_of_its_device() {
    let mut driver = Driver::new(Rng::default());
    assert_eq!(driver.get(0x00), u32::from_le_bytes(*b"virt"));
    assert_eq!((driver.get(0x04), driver.get(0x08), driver.get(0x0c)), (2, 4, u32::from_le_bytes(*b"VOLT")));
    assert_eq!(driver.get(0x70), 15);
    driver.set(0x30, 0);
    assert_eq!((driver.get(0x34), driver.get(0x44)), (64, 1));
    driver.set(0x30, 1);
    assert_eq!((driver.get(0x34), driver.get(0x44)), (0, 0));
    assert_eq!(
        (driver.get(0xb0), driver.get(0xbc), driver.get(0x100), driver.get(0xffc)),
        (u32::MAX, u32::MAX, 0, 0)
    );
}

#[test]
fn features_that_were_not_offered_are_refused() {
    let mut driver = Driver::new(Rng::default());
    for (half, bits) in [(0, 1), (1, 2), (1, 0)] {
        driver.set(0x70, 0);
        driver.set(0x70, 3);
        driver.set(0x24, half);
        driver.set(0x20, bits);
        driver.set(0x70, 11);
        assert_eq!(driver.get(0x70), 3, "{half} {bits:#x}");
        driver.set(0x70, 15);
        assert_eq!(driver.get(0x70), 3, "DRIVER_OK without FEATURES_OK");
    }
}

#[test]
fn interrupt_keeps_its_reason_until_it_is_acknowledged() {
    let mut driver = Driver::new(Rng::default());
    assert_eq!(driver.get(0x60), 0);
    driver.ask(0, &[Part::In(8)]);
    driver.until("the interrupt", |driver| (driver.get(0x60) == 1).then_some(()));
    assert_eq!(driver.transport.interrupt_line().read().unwrap(), 1);
    driver.set(0x64, 1);
    assert_eq!(driver.get(0x60), 0);
}

#[test]
fn reset_device_equals_a_new_one() {
    let mut driver = Driver::new(Rng::default());
    driver.ask(0, &[Part::In(8)]);
    driver.set(0x70, 0);
    driver.set(0x30, 0);
    assert_eq!((driver.get(0x70), driver.get(0x44), driver.get(0x60)), (0, 0, 0));
    driver.set_up(!0);
    assert_eq!(driver.ask(0, &[Part::In(8)]).len, 8);
}

#[test]
fn queue_taken_back_by_its_driver_is_not_touched() {
    let mut driver = Driver::new(Rng::default());
    driver.set(0x30, 0);
    driver.set(0x44, 0);
    driver.send(0, &[Part::In(8)]);
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert_eq!(driver.poll(0), None);
    assert_eq!((driver.get(0x44), driver.needs_reset()), (0, false));
}

#[test]
fn indirect_table_is_followed_once() {
    let mut driver = Driver::new(Rng::default());
    let (table, buffer) = (driver.buffer(32), driver.buffer(64));
    let entry = |at: u64, len: u32, flags: u16| {
        let mut bytes = at.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend([0; 2]);
        bytes
    };
    let write = |driver: &Driver, bytes: &[u8]| {
        vm_memory::Bytes::write_slice(driver.ram.guest(), bytes, vm_memory::GuestAddress(table)).unwrap();
    };
    write(&driver, &entry(buffer, 64, WRITE));
    driver.describe(0, 0, (table, 16), INDIRECT, 0);
    driver.offer(0, 0);
    assert_eq!(driver.wait(0).len, 64);
    // An indirect table inside an indirect table.
    write(&driver, &entry(table, 16, INDIRECT));
    driver.offer(0, 0);
    driver.wait_broken();
}

#[test]
fn invalid_chain_stops_the_device_until_a_reset() {
    let mut driver = Driver::new(Rng::default());
    /// Address and length, flags, next.
    type Descriptor = ((u64, u32), u16, u16);
    let cases: [(&str, &[Descriptor]); 9] = [
        ("a loop", &[((0x10_0000, 8), NEXT | WRITE, 0)]),
        ("a longer loop", &[((0x10_0000, 8), NEXT | WRITE, 1), ((0x10_0000, 8), NEXT | WRITE, 0)]),
        ("no length", &[((0x10_0000, 0), WRITE, 0)]),
        ("outside of memory", &[((MEMORY, 8), WRITE, 0)]),
        ("across the end of memory", &[((MEMORY - 4, 8), WRITE, 0)]),
        ("an address that wraps", &[((u64::MAX - 3, 8), WRITE, 0)]),
        ("to read after to write", &[((0x10_0000, 8), NEXT | WRITE, 1), ((0x10_0000, 8), 0, 0)]),
        ("a next that is not there", &[((0x10_0000, 8), NEXT | WRITE, 64)]),
        ("an indirect table of a broken length", &[((0x10_0000, 24), INDIRECT, 0)]),
    ];
    for (name, chain) in cases {
        for (index, &(buffer, flags, next)) in (0..).zip(chain) {
            driver.describe(0, index, buffer, flags, next);
        }
        driver.offer(0, 0);
        driver.wait_broken();
        assert_eq!(driver.poll(0), None, "{name}");
        assert_eq!(driver.get(0x60) & 2, 2, "{name}: no interrupt for the broken device");
        driver.set_up(!0);
        assert!(!driver.needs_reset(), "{name}");
        assert_eq!(driver.ask(0, &[Part::In(8)]).len, 8, "{name}");
    }
}

#[test]
fn index_jump_and_invalid_head_stop_the_device() {
    let mut driver = Driver::new(Rng::default());
    driver.jump(0, 65);
    driver.set(0x50, 0);
    driver.wait_broken();
    driver.set_up(!0);
    driver.offer(0, 64);
    driver.wait_broken();
}

#[test]
fn rings_outside_memory_stop_the_device() {
    for (register, address) in
        [(0x80, MEMORY), (0x90, MEMORY - 16), (0xa0, u64::MAX - 3), (0x80, u64::MAX - 15)]
    {
        let mut driver = Driver::new(Rng::default());
        driver.set(0x70, 0);
        driver.set(0x70, 3);
        driver.set(0x24, 1);
        driver.set(0x20, 1);
        driver.set(0x70, 11);
        driver.set(0x30, 0);
        driver.set(register, address as u32);
        driver.set(register + 4, (address >> 32) as u32);
        driver.set(0x44, 1);
        driver.set(0x70, 15);
        assert!(driver.needs_reset(), "{register:#x} {address:#x}");
    }
}

#[test]
fn registers_accept_any_order_and_width() {
    let mut driver = Driver::new(Rng::default());
    for width in [1, 2, 3, 4, 8] {
        for offset in 0..0x120 {
            let mut data = vec![0xa5; width];
            driver.transport.read(offset, &mut data);
            for byte in [0x00, 0x01, 0x0f, 0xff] {
                driver.transport.write(offset, &vec![byte; width]);
            }
        }
    }
    driver.set_up(!0);
    assert_eq!(driver.ask(0, &[Part::In(8)]).len, 8);
}

#[test]
fn restored_device_interrupts_again_and_answers_waiting_chains() {
    let mut driver = Driver::with_features(Rng::default(), !0);
    driver.ask(0, &[Part::In(8)]);
    driver.until("the interrupt", |driver| (driver.get(0x60) == 1).then_some(()));
    driver.transport.halt();
    driver.send(0, &[Part::In(8)]);
    driver.move_to(Rng::default());
    assert_eq!(driver.wait(0).len, 8);
    driver.until("the interrupt once more", |driver| driver.transport.interrupt_line().read().ok());
    assert_eq!(driver.get(0x60), 1);
}

#[test]
fn failed_device_stays_failed_over_a_snapshot() {
    let mut driver = Driver::new(Rng::default());
    driver.jump(0, 65);
    driver.set(0x50, 0);
    driver.wait_broken();
    driver.move_to(Rng::default());
    assert!(driver.needs_reset());
}

#[test]
fn table_with_more_descriptors_than_the_queue_is_refused() {
    let mut driver = Driver::new(Rng::default());
    let (table, buffer) = (driver.buffer(16 * 65), driver.buffer(65 * 8));
    for count in [64_u64, 65] {
        for number in 0..count {
            let mut entry = (buffer + 8 * number).to_le_bytes().to_vec();
            entry.extend(8_u32.to_le_bytes());
            entry.extend((if number + 1 < count { WRITE | NEXT } else { WRITE }).to_le_bytes());
            entry.extend((number as u16 + 1).to_le_bytes());
            let at = vm_memory::GuestAddress(table + 16 * number);
            vm_memory::Bytes::write_slice(driver.ram.guest(), &entry, at).unwrap();
        }
        driver.describe(0, 0, (table, 16 * count as u32), INDIRECT, 0);
        driver.offer(0, 0);
        match count {
            64 => assert_eq!(driver.wait(0).len, 64 * 8),
            _ => driver.wait_broken(),
        }
    }
}

/// Whether an event that wakes an idle device waits.
fn is_ready(watch: &Watch) -> bool {
    let mut polled = [PollFd::new(watch, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec::default())).unwrap() == 1
}

/// Resumes a halted device as the idle watcher does.
fn stand_by(driver: &mut Driver) -> Option<Watch> {
    driver.transport.stand_by().unwrap().expect("it is halted").take();
    driver.transport.settle().unwrap()
}

#[test]
fn idle_device_answers_waiting_chains_and_gets_its_thread_when_woken() {
    let mut driver = Driver::new(Rng::default());
    driver.ask(0, &[Part::In(8)]);
    driver.transport.halt();
    driver.send(0, &[Part::In(8)]);
    assert!(!is_ready(&stand_by(&mut driver).expect("it is idle")));
    assert!(driver.poll(0).is_some(), "what waited is answered by whoever lets it go on");
    driver.send(0, &[Part::In(8)]);
    assert_eq!(driver.poll(0), None, "nobody looks");
    let watch = driver.transport.settle().unwrap();
    assert!(is_ready(&watch.expect("it is idle")));
    driver.transport.wake().unwrap();
    driver.wait(0);
    assert!(lock(&driver.transport.idle_slot().unwrap()).is_none(), "it has a thread");
    driver.transport.wake().unwrap();
    driver.ask(0, &[Part::In(8)]);
}

#[test]
fn idle_device_is_saved_and_reset_like_a_running_one() {
    let mut driver = Driver::new(Rng::default());
    driver.transport.halt();
    stand_by(&mut driver).expect("it is idle");
    driver.move_to(Rng::default());
    assert_eq!(driver.ask(0, &[Part::In(8)]).len, 8);
    driver.transport.halt();
    stand_by(&mut driver).expect("it is idle");
    driver.set(0x70, 0);
    driver.set_up(!0);
    assert_eq!(driver.ask(0, &[Part::In(8)]).len, 8);
}
