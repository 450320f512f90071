//! The checksums of a pack.
//!
//! They are XXH3. Every page fault that a chunk answers verifies the chunk first, so the time counts. 64 KiB
//! take 6 us (`benches/pack`), and lz4 takes 26 us to decode them. CRC-64 by tables, as in `state.json`,
//! would take 42 us. 64 bits suffice against accidents. No checksum here defends against someone who can
//! write the file.

use std::fmt;

use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_64_with_seed};

/// Checksum of a chunk's content, or of the footer.
pub fn of(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// Checksum of a block of the index. It covers the block's number, so no block passes for another.
pub fn of_block(number: u32, bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(bytes, u64::from(number) + 1)
}

/// Digest of parts, one after another.
#[cfg(any(test, feature = "fuzzing"))]
pub fn digest(parts: &[&[u8]]) -> u128 {
    let mut state = ByteDigest::default();
    parts.iter().for_each(|part| state.add(part));
    state.finish()
}

/// A running digest of bytes.
#[derive(Clone, Default)]
pub struct ByteDigest(Xxh3);

impl ByteDigest {
    /// Adds more bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all bytes so far.
    pub fn finish(&self) -> u128 {
        self.0.digest128()
    }
}

impl fmt::Debug for ByteDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({:032x})", self.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_the_named_ones() {
        // The reference implementation's values for no bytes.
        assert_eq!(of(b""), 0x2d06_8005_38d3_94c2);
        assert_eq!(digest(&[]), 0x99aa_06d3_0147_98d8_6001_c324_468d_497f);
        assert_eq!(digest(&[b"ab", b"c"]), digest(&[b"abc"]));
        assert_ne!(of_block(0, b"same"), of_block(1, b"same"));
        assert_ne!(of_block(0, b"same"), of(b"same"));
    }
}
