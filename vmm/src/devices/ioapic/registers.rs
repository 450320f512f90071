//! The registers of the IOAPIC (Intel 82093AA datasheet, section 3), and the message for an edge.
//!
//! ```text
//! 0x00 IOREGSEL: register number    0: id    1: version    2: arbitration id    0x10 + 2n, 0x11 + 2n: redirection of pin n
//! 0x10 IOWIN: that register
//! 0x40 EOI: the vector of a finished interrupt
//! ```

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::kvm::msi::MsiMessage;
use crate::kvm::vm::IO_APIC_PINS;
use crate::persist::Persist;

const IOREGSEL: u64 = 0x00;
const IOWIN: u64 = 0x10;
const EOI: u64 = 0x40;

const ID: u8 = 0;
const VERSION: u8 = 1;
const ARBITRATION: u8 = 2;
const REDIRECTION: u8 = 0x10;

/// Version 0x20: the first with an EOI register.
const VERSION_VALUE: u32 = (IO_APIC_PINS as u32 - 1) << 16 | 0x20;
/// The id has four bits, at the top of its register.
const ID_SHIFT: u32 = 24;
const ID_MASK: u8 = 0xf;

/// Fields of a redirection entry.
mod entry {
    pub const VECTOR: u64 = 0xff;
    pub const DELIVERY_SHIFT: u32 = 8;
    pub const DELIVERY: u64 = 7 << DELIVERY_SHIFT;
    pub const LOGICAL: u64 = 1 << 11;
    pub const POLARITY: u64 = 1 << 13;
    pub const REMOTE_IRR: u64 = 1 << 14;
    pub const LEVEL: u64 = 1 << 15;
    pub const MASKED: u64 = 1 << 16;
    pub const DESTINATION_SHIFT: u32 = 56;
    pub const DESTINATION: u64 = 0xff << DESTINATION_SHIFT;
    /// Bits that a guest can write. The delivery status is always 0, because a message is sent at once.
    pub const WRITABLE: u64 = VECTOR | DELIVERY | LOGICAL | POLARITY | LEVEL | MASKED | DESTINATION;
}

/// Delivery modes that a local APIC accepts: fixed, lowest priority, SMI, NMI, INIT. An external interrupt
/// would need a PIC, which the machine lacks.
const DELIVERABLE: [u64; 5] = [0, 1, 2, 4, 5];

/// Fields of a message.
mod message {
    pub const ADDRESS: u32 = 0xfee0_0000;
    pub const DESTINATION_SHIFT: u32 = 12;
    pub const LOGICAL: u32 = 1 << 2;
    pub const ASSERT: u32 = 1 << 14;
    pub const LEVEL: u32 = 1 << 15;
}

/// The registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IoApicRegisters {
    select: u8,
    id: u8,
    pins: [u64; IO_APIC_PINS],
}

/// The registers that a guest wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IoApicState {
    select: u8,
    id: u8,
    /// Redirection entries.
    pins: [u64; IO_APIC_PINS],
}

impl Default for IoApicRegisters {
    /// State after a reset.
    fn default() -> Self {
        Self { select: 0, id: 0, pins: [entry::MASKED; IO_APIC_PINS] }
    }
}

/// The pin that a register selects, and whether the register is its upper half.
fn pin_of(register: u8) -> Option<(usize, bool)> {
    let half = register.checked_sub(REDIRECTION)?;
    let pin = usize::from(half / 2);
    (pin < IO_APIC_PINS).then_some((pin, half % 2 == 1))
}

impl IoApicRegisters {
    pub(super) fn read(&self, offset: u64) -> u32 {
        match (offset, self.select) {
            (IOREGSEL, select) => select.into(),
            (IOWIN, ID | ARBITRATION) => u32::from(self.id) << ID_SHIFT,
            (IOWIN, VERSION) => VERSION_VALUE,
            (IOWIN, register) => match pin_of(register) {
                Some((pin, true)) => (self.pins[pin] >> 32) as u32,
                Some((pin, false)) => self.pins[pin] as u32,
                None => 0,
            },
            _ => 0,
        }
    }

    pub(super) fn write(&mut self, offset: u64, value: u32) {
        match (offset, self.select) {
            (IOREGSEL, _) => self.select = value as u8,
            (IOWIN, ID) => self.id = (value >> ID_SHIFT) as u8 & ID_MASK,
            (IOWIN, register) => {
                if let Some((pin, upper)) = pin_of(register) {
                    self.redirect(pin, upper, value.into());
                }
            }
            (EOI, _) => self.end_of_interrupt(value as u8),
            _ => {}
        }
    }

    /// An edge-triggered pin waits for no end: guests switch a pin to edge and back where there is no EOI
    /// register.
    fn redirect(&mut self, pin: usize, upper: bool, value: u64) {
        let before = self.pins[pin];
        let (half, kept) = if upper { (value << 32, 0xffff_ffff) } else { (value, 0xffff_ffff << 32) };
        let after = (before & kept | half) & entry::WRITABLE;
        let waits = before & after & entry::LEVEL != 0;
        self.pins[pin] = after | if waits { before & entry::REMOTE_IRR } else { 0 };
    }

    /// The message for an edge on a line, unless the edge is lost.
    pub(super) fn message(&self, gsi: u32) -> Option<MsiMessage> {
        let entry = *self.pins.get(gsi as usize)?;
        if entry & (entry::MASKED | entry::REMOTE_IRR) != 0 { None } else { message_of(entry) }
    }

    /// Records that the message has reached a local APIC.
    pub(super) fn taken(&mut self, gsi: u32) {
        if let Some(entry) = self.pins.get_mut(gsi as usize)
            && *entry & entry::LEVEL != 0
        {
            *entry |= entry::REMOTE_IRR;
        }
    }

    /// Ends the interrupts of this vector. Devices send edges and never hold a line, so no interrupt follows.
    pub(super) fn end_of_interrupt(&mut self, vector: u8) {
        let ended = |entry: &&mut u64| **entry & entry::VECTOR == u64::from(vector);
        self.pins.iter_mut().filter(ended).for_each(|entry| *entry &= !entry::REMOTE_IRR);
    }

    /// Messages of the pins that wait for the ends of their interrupts. The interrupt of a masked pin may
    /// still be in service.
    pub(super) fn level_triggered(&self) -> Vec<(u32, MsiMessage)> {
        let level = self.pins.iter().zip(0..).filter(|(entry, _)| **entry & entry::LEVEL != 0);
        level.filter_map(|(entry, pin)| Some((pin, message_of(*entry)?))).collect()
    }
}

fn message_of(entry: u64) -> Option<MsiMessage> {
    let delivery = (entry & entry::DELIVERY) >> entry::DELIVERY_SHIFT;
    if !DELIVERABLE.contains(&delivery) {
        return None;
    }
    let destination = (entry >> entry::DESTINATION_SHIFT) as u32;
    let bit = |field: u64, bit: u32| if entry & field == 0 { 0 } else { bit };
    Some(MsiMessage {
        address: message::ADDRESS
            | destination << message::DESTINATION_SHIFT
            | bit(entry::LOGICAL, message::LOGICAL),
        // Vector and delivery mode have the same bits as in the entry.
        data: (entry & (entry::VECTOR | entry::DELIVERY)) as u32
            | message::ASSERT
            | bit(entry::LEVEL, message::LEVEL),
    })
}

impl Persist for IoApicRegisters {
    type State = IoApicState;

    fn save(&self) -> Result<IoApicState> {
        let Self { select, id, pins } = self.clone();
        Ok(IoApicState { select, id, pins })
    }

    /// No pin waits for an end after a restore. The end may have been on its way in KVM when the state was
    /// saved, where it cannot be read. One interrupt too many is better than a pin that waits without end.
    fn restore(&mut self, state: &IoApicState) -> Result<()> {
        let IoApicState { select, id, pins } = state;
        *self = Self { select: *select, id: id & ID_MASK, pins: pins.map(|entry| entry & entry::WRITABLE) };
        Ok(())
    }
}
