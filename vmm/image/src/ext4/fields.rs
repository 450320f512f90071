//! Little-endian fields of a structure, by their offsets.

pub(super) struct Fields<'a>(pub(super) &'a mut [u8]);

impl Fields<'_> {
    pub(super) fn bytes(&mut self, at: usize, value: &[u8]) {
        self.0[at..at + value.len()].copy_from_slice(value);
    }

    pub(super) fn u16(&mut self, at: usize, value: u16) {
        self.bytes(at, &value.to_le_bytes());
    }

    pub(super) fn u32(&mut self, at: usize, value: u32) {
        self.bytes(at, &value.to_le_bytes());
    }

    /// Sets a number of 32 bits whose halves lie apart (`_lo` and `_hi`).
    pub(super) fn u16_halves(&mut self, [low, high]: [usize; 2], value: u32) {
        self.u16(low, value as u16);
        self.u16(high, (value >> 16) as u16);
    }

    /// Sets a number of 64 bits whose halves lie apart.
    pub(super) fn u32_halves(&mut self, [low, high]: [usize; 2], value: u64) {
        self.u32(low, value as u32);
        self.u32(high, (value >> 32) as u32);
    }
}
