//! CRC-32C as Linux's file systems use it: a state that later bytes continue, without inversions.

use crc::{Algorithm, CRC_32_ISCSI, Crc, Table};

static CRC: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&Algorithm { xorout: 0, ..CRC_32_ISCSI });

/// The state before any byte.
pub(crate) const START: u32 = !0;

/// Returns the state after more bytes.
pub(crate) fn after(state: u32, bytes: &[u8]) -> u32 {
    // The crate takes initial values in the order of bits that the polynomial has.
    let mut digest = CRC.digest_with_initial(state.reverse_bits());
    digest.update(bytes);
    digest.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_continues_over_parts_and_is_the_inverted_crc() {
        const CHECK: u32 = 0xe306_9283;
        assert_eq!(after(START, b"123456789"), !CHECK);
        assert_eq!(after(after(START, b"1234"), b"56789"), !CHECK);
        assert_eq!(after(7, b""), 7);
    }
}
