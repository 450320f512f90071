//! The IOAPIC through the guest's window.

use proptest::prelude::*;

use super::registers::IoApicRegisters;
use crate::kvm::msi::MsiMessage;
use crate::kvm::vm::IO_APIC_PINS;
use crate::persist::Persist;

const MASKED: u32 = 1 << 16;
const LEVEL: u32 = 1 << 15;
const REMOTE_IRR: u32 = 1 << 14;
const LOGICAL: u32 = 1 << 11;

fn read(registers: &mut IoApicRegisters, register: u32) -> u32 {
    registers.write(0, register);
    registers.read(0x10)
}

fn write(registers: &mut IoApicRegisters, register: u32, value: u32) {
    registers.write(0, register);
    registers.write(0x10, value);
}

fn low(pin: u32) -> u32 {
    0x10 + 2 * pin
}

/// A pulse, with local APICs that accept every message.
fn pulse(registers: &mut IoApicRegisters, pin: u32) -> Option<MsiMessage> {
    registers.message(pin).inspect(|_| registers.taken(pin))
}

#[test]
fn reset_masks_all_pins() {
    let mut registers = IoApicRegisters::default();
    assert_eq!(read(&mut registers, 0), 0);
    assert_eq!(read(&mut registers, 1), 0x0017_0020, "24 pins, and a version with an EOI register");
    for pin in 0..24 {
        assert_eq!([read(&mut registers, low(pin)), read(&mut registers, low(pin) + 1)], [MASKED, 0]);
        assert_eq!(pulse(&mut registers, pin), None);
    }
    assert_eq!(registers.level_triggered(), []);
}

#[test]
fn registers_keep_their_writable_bits() {
    let mut registers = IoApicRegisters::default();
    write(&mut registers, 0, 0xffff_ffff);
    assert_eq!([read(&mut registers, 0), read(&mut registers, 2)], [0x0f00_0000; 2], "id and arbitration id");
    write(&mut registers, 1, 0);
    assert_eq!(read(&mut registers, 1), 0x0017_0020);
    write(&mut registers, low(23), u32::MAX);
    write(&mut registers, low(23) + 1, u32::MAX);
    let found = [read(&mut registers, low(23)), read(&mut registers, low(23) + 1)];
    assert_eq!(found, [0x1_afff, 0xff00_0000], "neither delivery status nor remote IRR nor what is reserved");
    let before = registers.clone();
    for outside in [3, 0xf, low(24), 0xff] {
        write(&mut registers, outside, u32::MAX);
        assert_eq!(read(&mut registers, outside), 0, "{outside:#x}");
    }
    registers.write(0x20, 7);
    registers.write(0x14, 7);
    assert_eq!(registers.read(0x20), 0);
    registers.write(0, before.read(0));
    assert_eq!(registers, before);
}

#[test]
fn edge_becomes_a_message() {
    let mut registers = IoApicRegisters::default();
    for (entry, destination, address, data) in [
        (0x31, 0, 0xfee0_0000, 0x4031),
        (0x32, 5, 0xfee0_5000, 0x4032),
        (0x33 | LOGICAL | 1 << 8, 0xff, 0xfeef_f004, 0x4133), // lowest priority among all
        (0x400, 1, 0xfee0_1000, 0x4400),                      // NMI
        (0x34 | LEVEL, 2, 0xfee0_2000, 0xc034),
    ] {
        write(&mut registers, low(4) + 1, destination << 24);
        write(&mut registers, low(4), entry);
        assert_eq!(pulse(&mut registers, 4), Some(MsiMessage { address, data }), "{entry:#x}");
    }
    for not_deliverable in [3, 6, 7] {
        write(&mut registers, low(4), not_deliverable << 8 | 0x31);
        assert_eq!(pulse(&mut registers, 4), None, "{not_deliverable}");
    }
    for outside in [24, 1000, u32::MAX] {
        assert_eq!(pulse(&mut registers, outside), None);
    }
}

#[test]
fn edge_at_a_masked_pin_is_lost() {
    let mut registers = IoApicRegisters::default();
    for entry in [0x31, 0x31 | LEVEL] {
        write(&mut registers, low(5), entry | MASKED);
        assert_eq!(pulse(&mut registers, 5), None);
        write(&mut registers, low(5), entry);
        assert_eq!(read(&mut registers, low(5)), entry, "nothing was kept for later");
        assert!(pulse(&mut registers, 5).is_some());
    }
}

#[test]
fn edge_triggered_pin_waits_for_no_end() {
    let mut registers = IoApicRegisters::default();
    write(&mut registers, low(5), 0x31);
    for _ in 0..3 {
        assert!(pulse(&mut registers, 5).is_some());
        assert_eq!(read(&mut registers, low(5)), 0x31);
    }
}

/// A guest's way to end an interrupt.
type End = fn(&mut IoApicRegisters);

#[test]
fn level_triggered_pin_waits_for_the_end() {
    let mut registers = IoApicRegisters::default();
    let message = |data| MsiMessage { address: 0xfee0_0000, data };
    write(&mut registers, low(5), 0x31 | LEVEL);
    write(&mut registers, low(6), 0x32 | LEVEL | MASKED);
    assert_eq!(registers.level_triggered(), [(5, message(0xc031)), (6, message(0xc032))]);
    let ends: [(&str, End); 3] = [
        ("a local APIC's end of interrupt", |registers| registers.end_of_interrupt(0x31)),
        ("its own register", |registers| registers.write(0x40, 0x31)),
        ("a moment as an edge-triggered one", |registers| {
            write(registers, low(5), 0x31);
            write(registers, low(5), 0x31 | LEVEL);
        }),
    ];
    for (name, end) in ends {
        assert!(pulse(&mut registers, 5).is_some(), "{name}");
        registers.end_of_interrupt(0x32);
        write(&mut registers, low(5) + 1, 0);
        write(&mut registers, low(5), 0x31 | LEVEL);
        assert_eq!(read(&mut registers, low(5)), 0x31 | LEVEL | REMOTE_IRR);
        assert_eq!(pulse(&mut registers, 5), None, "{name}");
        end(&mut registers);
        assert_eq!(read(&mut registers, low(5)), 0x31 | LEVEL, "{name}");
    }
}

#[test]
fn pin_does_not_wait_for_the_end_of_an_undelivered_message() {
    let mut registers = IoApicRegisters::default();
    write(&mut registers, low(5), 0x31 | LEVEL);
    assert_eq!(registers.message(5), registers.message(5));
    assert_eq!(read(&mut registers, low(5)), 0x31 | LEVEL);
}

#[test]
fn restore_clears_impossible_bits() {
    let pins = vec![u64::MAX; IO_APIC_PINS];
    let state = serde_json::json!({ "select": 255, "id": 255, "pins": pins });
    let mut registers = IoApicRegisters::default();
    registers.restore(&serde_json::from_value(state).unwrap()).unwrap();
    assert_eq!([read(&mut registers, 0), read(&mut registers, low(0))], [0x0f00_0000, 0x1_afff]);
    for bad in [
        serde_json::json!({ "select": 0, "id": 0, "pins": [0] }),
        serde_json::json!({ "select": 256, "id": 0, "pins": pins }),
        serde_json::json!({ "select": 0, "id": 0, "pins": pins, "more": 0 }),
    ] {
        assert!(serde_json::from_value::<super::IoApicState>(bad).is_err());
    }
}

/// An act of a guest or of its devices on an IOAPIC.
#[derive(Clone, Debug)]
enum Act {
    Write(u64, u32),
    Pulse(u32),
    End(u8),
}

fn act() -> impl Strategy<Value = Act> {
    let offset = prop_oneof![Just(0), Just(0x10), Just(0x40), any::<u64>()];
    // Values that select pins, a few vectors, and the bits that matter.
    let value =
        prop_oneof![0..0x45u32, (0..4u32, any::<u32>()).prop_map(|(vector, bits)| bits & !0xff | vector)];
    prop_oneof![
        4 => (offset, value).prop_map(|(offset, value)| Act::Write(offset, value)),
        2 => (0..26u32).prop_map(Act::Pulse),
        1 => (0..4u8).prop_map(Act::End),
    ]
}

proptest! {
    /// For any values that a guest writes: a level-triggered pin sends one of two edges, another pin sends
    /// both. A saved and restored IOAPIC equals the original, except that no pin waits.
    #[test]
    fn restored_ioapic_behaves_as_the_original(acts in prop::collection::vec(act(), 0..200)) {
        let mut registers = IoApicRegisters::default();
        for act in acts {
            match act {
                Act::Write(offset, value) => registers.write(offset, value),
                Act::End(vector) => registers.end_of_interrupt(vector),
                Act::Pulse(pin) => {
                    let sent = pulse(&mut registers, pin);
                    let again = pulse(&mut registers, pin);
                    let level = sent.is_some_and(|message| message.data & LEVEL != 0);
                    prop_assert_eq!(again, sent.filter(|_| !level), "pin {}", pin);
                }
            }
        }
        let mut restored = IoApicRegisters::default();
        restored.restore(&registers.save().unwrap()).unwrap();
        prop_assert_eq!(restored.level_triggered(), registers.level_triggered());
        prop_assert_eq!(restored.read(0), registers.read(0));
        (0..=u8::MAX).for_each(|vector| registers.end_of_interrupt(vector));
        prop_assert_eq!(restored, registers);
    }
}
