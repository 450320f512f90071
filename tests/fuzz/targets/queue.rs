//! A queue by itself, its rings anywhere and its indices near their ends.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use volt_vmm::fuzzing::Queue;

/// The most acts of one program.
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
    Listen(bool),
    Reload,
    /// An entry, and the index after it.
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
    Poke {
        at: u32,
        bytes: [u8; 8],
    },
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
            Act::Listen(wanted) => queue.listen(wanted),
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
                let mut bytes = [0; 16];
                bytes[..4].copy_from_slice(&at.to_le_bytes());
                bytes[8..10].copy_from_slice(&len.to_le_bytes());
                bytes[12] = flags;
                bytes[14] = next;
                queue.poke(rings[0].wrapping_add(16 * (u64::from(index) % u64::from(size))), &bytes);
            }
            Act::Poke { at, bytes } => queue.poke((at % (1 << 20)).into(), &bytes),
        }
    }
});
