//! Fuzzes a queue without a device, with rings at any address and indices near their wrap.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use volt_vmm::fuzzing::Queue;

/// Most acts of one program.
const ACTS: usize = 64;

#[derive(Debug, Arbitrary)]
struct Program {
    max_shift: u8,
    size: u16,
    shifted: bool,
    rings: [u32; 3],
    far: Option<u64>,
    event_idx: bool,
    index: u16,
    acts: Vec<Act>,
}

#[derive(Debug, Arbitrary)]
enum Act {
    Take {
        step: u16,
    },
    Untake,
    Put {
        chains: Vec<(u16, u32)>,
        together: bool,
        known: bool,
    },
    Notifications(bool),
    Reload,
    /// Writes an entry of the available ring and the index after it.
    Offer {
        head: u16,
        by: u8,
    },
    Descriptor {
        index: u8,
        at: u32,
        len: u16,
        flags: u8,
        next: u8,
    },
    /// Writes a descriptor with an indirect table, whose descriptors form one chain.
    Indirect {
        index: u8,
        count: u8,
        writable_from: u8,
    },
    Poke {
        at: u32,
        bytes: [u8; 8],
    },
}

/// Address of the indirect tables and of their buffers.
const TABLES: u64 = 0xe_0000;

fn descriptor(at: u64, len: u32, flags: u16, next: u16) -> [u8; 16] {
    let rest = u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48;
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&at.to_le_bytes());
    bytes[8..].copy_from_slice(&rest.to_le_bytes());
    bytes
}

fuzz_target!(|program: Program| {
    let Program { max_shift, size, shifted, rings, far, event_idx, index, acts } = program;
    let max = 1 << (max_shift % 16);
    let size = if shifted { 1 << (size % 16) } else { size };
    let aligned = |at: u32, to: u64| (u64::from(at) % (1 << 20)) / to * to;
    let mut rings = [aligned(rings[0], 16), aligned(rings[1], 2), aligned(rings[2], 4)];
    if let Some(far) = far {
        rings[(far % 3) as usize] = far;
    }
    let Some(mut queue) = Queue::new(max, size, rings, event_idx, index) else { return };
    let (mut available, size) = (index, queue.size());
    for act in acts.into_iter().take(ACTS) {
        match act {
            Act::Take { step } => drop(queue.take(step.into())),
            Act::Untake => queue.untake(),
            Act::Put { chains, together, known } => {
                let head = |head: u16| if known { head % size } else { head };
                let chains: Vec<_> =
                    chains.iter().map(|(number, written)| (head(*number), *written as usize)).collect();
                queue.put(&chains, together);
            }
            Act::Notifications(wanted) => queue.set_notifications(wanted),
            Act::Reload => queue.reload(),
            Act::Offer { head, by } => {
                queue.poke(
                    rings[1].wrapping_add(4 + 2 * u64::from(available % size)),
                    &(head % size).to_le_bytes(),
                );
                available = available.wrapping_add(u16::from(by).max(1));
                queue.poke(rings[1].wrapping_add(2), &available.to_le_bytes());
            }
            Act::Descriptor { index, at, len, flags, next } => {
                // Some of the buffers lie outside memory.
                let bytes = descriptor((at % 0x10_1000).into(), len.into(), (flags & 3).into(), next.into());
                queue.poke(rings[0].wrapping_add(16 * u64::from(u16::from(index) % size)), &bytes);
            }
            Act::Indirect { index, count, writable_from } => {
                let table = TABLES + u64::from(index) * 0x200;
                for number in 0..count {
                    let flags = u16::from(number + 1 < count) | u16::from(number >= writable_from) << 1;
                    let entry = descriptor(table, 16, flags, u16::from(number) + 1);
                    queue.poke(table + 16 * u64::from(number), &entry);
                }
                let bytes = descriptor(table, 16 * u32::from(count), 4, 0);
                queue.poke(rings[0].wrapping_add(16 * u64::from(u16::from(index) % size)), &bytes);
            }
            Act::Poke { at, bytes } => queue.poke((at % (1 << 20)).into(), &bytes),
        }
    }
});
