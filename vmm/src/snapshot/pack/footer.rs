//! The last 64 bytes of a pack. Its last 24 are the same in every version: the length of what stands before them, the version,
//! the checksum of all that, and the magic.

use super::checksum;
use super::geometry::Geometry;
use super::index::{BLOCK, ITEM, u32_at, u64_at};

/// The format version this volt-vmm writes. It reads this one and every older one.
pub const VERSION: u32 = 1;
/// Bytes, of this version.
pub const LEN: usize = BODY + TAIL;

const BODY: usize = 40;
const TAIL: usize = 24;
const MAGIC: &[u8; 8] = b"voltpack";

/// What the footer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footer {
    pub geometry: Geometry,
    /// Bytes of all stored chunks.
    pub data_len: u64,
    /// Of the table and the lengths.
    pub digest: u128,
}

impl Footer {
    /// For a pack with this table.
    pub fn new(geometry: Geometry, data_len: u64, table: &[u8]) -> Self {
        let mut footer = Self { geometry, data_len, digest: 0 };
        footer.digest = footer.digest_with(table);
        footer
    }

    /// What the digest should be.
    pub fn digest_with(&self, table: &[u8]) -> u128 {
        checksum::digest(table, &self.lengths())
    }

    fn lengths(&self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&self.geometry.memory_len().to_le_bytes());
        bytes[8..12].copy_from_slice(&self.geometry.chunk_len().to_le_bytes());
        bytes[16..].copy_from_slice(&self.data_len.to_le_bytes());
        bytes
    }

    /// As it stands in the file.
    pub fn to_bytes(self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..24].copy_from_slice(&self.lengths());
        bytes[24..BODY].copy_from_slice(&self.digest.to_le_bytes());
        bytes[BODY..BODY + 4].copy_from_slice(&(BODY as u32).to_le_bytes());
        bytes[BODY + 4..BODY + 8].copy_from_slice(&VERSION.to_le_bytes());
        let sum = checksum::of(&bytes[..BODY + 8]);
        bytes[BODY + 8..BODY + 16].copy_from_slice(&sum.to_le_bytes());
        bytes[BODY + 16..].copy_from_slice(MAGIC);
        bytes
    }

    /// From the last bytes of a file that is `file_len` long.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn from_bytes(bytes: &[u8; LEN], file_len: u64) -> Result<Self, String> {
        if bytes[BODY + 16..] != *MAGIC {
            return Err("is cut off or no pack: it does not end like one".to_owned());
        }
        let (body, version) = (u32_at(bytes, BODY), u32_at(bytes, BODY + 4));
        // A longer footer of another version has its checksum over bytes that are not looked at here.
        let sound = checksum::of(&bytes[..BODY + 8]) == u64_at(bytes, BODY + 8);
        if version > VERSION && (sound || body as usize != BODY) {
            return Err(format!(
                "has format version {version}; this volt-vmm {} reads versions up to {VERSION}: use a newer volt-vmm",
                env!("CARGO_PKG_VERSION")
            ));
        }
        if !sound || version != VERSION || body as usize != BODY || u32_at(bytes, 12) != 0 {
            return Err("is damaged: its footer has another checksum".to_owned());
        }
        let geometry = Geometry::new(u64_at(bytes, 0), u32_at(bytes, 8))?;
        let digest = u128::from_le_bytes(bytes[24..BODY].try_into().expect("16 bytes"));
        let footer = Self { geometry, data_len: u64_at(bytes, 16), digest };
        match footer.file_len() {
            Some(len) if len == file_len => Ok(footer),
            _ => Err(format!(
                "is cut off or damaged: it is {file_len} bytes long, and not what its footer says"
            )),
        }
    }

    /// Where the index begins.
    pub fn index_at(&self) -> u64 {
        self.data_len.next_multiple_of(BLOCK as u64)
    }

    /// Where the table begins.
    pub fn table_at(&self) -> u64 {
        self.index_at() + u64::from(self.geometry.blocks()) * BLOCK as u64
    }

    /// Bytes of the table.
    pub fn table_len(&self) -> usize {
        self.geometry.blocks() as usize * ITEM
    }

    fn file_len(&self) -> Option<u64> {
        self.data_len.checked_next_multiple_of(BLOCK as u64)?;
        // What follows is at most 4 GiB and a bit.
        self.data_len.checked_add(1 << 33)?;
        Some(self.table_at() + (self.table_len() + LEN) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_footer_is_what_it_was_and_another_version_is_named() {
        let footer = Footer::new(Geometry::new(1 << 30, 1 << 16).unwrap(), 12_345, b"the table");
        let bytes = footer.to_bytes();
        let len = footer.file_len().unwrap();
        assert_eq!(Footer::from_bytes(&bytes, len), Ok(footer));
        assert!(Footer::from_bytes(&bytes, len + 1).unwrap_err().contains("cut off"));
        let mut newer = bytes;
        newer[BODY + 4] = 9;
        let sum = checksum::of(&newer[..BODY + 8]);
        newer[BODY + 8..BODY + 16].copy_from_slice(&sum.to_le_bytes());
        assert!(Footer::from_bytes(&newer, len).unwrap_err().contains("format version 9"));
        // Longer than ours: what we take for its checksum is none of ours to compute.
        newer[BODY] = 200;
        assert!(Footer::from_bytes(&newer, len).unwrap_err().contains("newer volt-vmm"));
        for byte in 0..LEN {
            let mut bad = bytes;
            bad[byte] ^= 0x40;
            assert!(Footer::from_bytes(&bad, len).is_err(), "{byte}");
        }
    }

    #[test]
    fn lengths_that_overflow_are_refused() {
        let geometry = Geometry::new(1 << 30, 1 << 16).unwrap();
        for data_len in [u64::MAX, u64::MAX - 4096, 1 << 63] {
            assert!(Footer::from_bytes(&Footer::new(geometry, data_len, b"").to_bytes(), 64).is_err());
        }
    }
}
