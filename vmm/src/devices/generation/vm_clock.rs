//! The page of VMClock (`struct vmclock_abi` of Linux, include/uapi/linux/vmclock-abi.h), as far as this
//! host fills it: the markers that change with the generation, and no time.

/// Length of the structure. The rest of its page is zero.
const LEN: usize = 112;
const MAGIC: u32 = 0x4b4c_4356;
/// The size that the structure names is its page's.
const SIZE: u32 = 4096;
const VERSION: u16 = 1;
/// `counter_id`: the page relates no counter to a time.
const NO_COUNTER: u8 = 0xff;
/// `flags`: the generation counter is present, and changes are notified.
const FLAGS: u64 = 1 << 8 | 1 << 9;

// Offsets.
const VERSION_AT: usize = 8;
const COUNTER_ID_AT: usize = 10;
const SEQUENCE_AT: usize = 12;
const MARKER_AT: usize = 16;
const FLAGS_AT: usize = 24;
const GENERATION_AT: usize = 104;

const _: () = assert!(GENERATION_AT + size_of::<u64>() == LEN);

/// The values that tell a guest of a disruption. Each new pair differs from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Disruption {
    /// `disruption_marker`: a guest's clock is disrupted if it changes.
    pub(super) marker: u64,
    /// `vm_generation_counter`: the VM was restored if it changes.
    pub(super) generation: u64,
}

/// The content of the structure.
#[derive(Clone, Copy, Debug)]
pub(super) struct VmClock {
    sequence: u32,
    disruption: Disruption,
}

impl VmClock {
    /// Offset of the sequence, which is odd while the structure changes.
    pub(super) const SEQUENCE: u64 = SEQUENCE_AT as u64;

    pub(super) fn new(sequence: u32, disruption: Disruption) -> Self {
        Self { sequence, disruption }
    }

    /// Encodes the structure. Fields of time are zero, and the status of the clock is unknown (0).
    pub(super) fn to_bytes(self) -> [u8; LEN] {
        let Self { sequence, disruption: Disruption { marker, generation } } = self;
        let mut bytes = [0; LEN];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &MAGIC.to_le_bytes());
        put(4, &SIZE.to_le_bytes());
        put(VERSION_AT, &VERSION.to_le_bytes());
        put(COUNTER_ID_AT, &[NO_COUNTER]);
        put(SEQUENCE_AT, &sequence.to_le_bytes());
        put(MARKER_AT, &marker.to_le_bytes());
        put(FLAGS_AT, &FLAGS.to_le_bytes());
        put(GENERATION_AT, &generation.to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_where_linux_reads_them() {
        let disruption = Disruption { marker: 0x0102_0304_0506_0708, generation: 0x1112_1314_1516_1718 };
        let bytes = VmClock::new(0x2122_2324, disruption).to_bytes();
        assert_eq!(&bytes[..4], b"VCLK");
        assert_eq!(bytes[4..12], [0, 16, 0, 0, 1, 0, 0xff, 0]);
        assert_eq!(bytes[12..16], [0x24, 0x23, 0x22, 0x21]);
        assert_eq!(bytes[16..24], [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(bytes[24..32], [0, 3, 0, 0, 0, 0, 0, 0]);
        assert!(bytes[32..104].iter().all(|byte| *byte == 0));
        assert_eq!(bytes[104..], [0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11]);
    }
}
