//! The footer of a pack: 80 bytes, 64 in version 1. Its last 24 bytes have the same layout in every version.
//! They are the length of the part before them, the version, the checksum of all before it, and the magic.

use super::checksum;
use super::checksum::ByteDigest;
use super::geometry::Geometry;
use super::index::{BLOCK, ITEM, u32_at, u64_at};

/// The format version that this volt-vmm writes. It reads every older one too.
pub const VERSION: u32 = 2;
/// Length of this version's footer, in bytes.
pub const LEN: usize = BODY + TAIL;
/// Length of the shortest footer, that of version 1.
pub const SHORTEST: usize = BODY_1 + TAIL;

/// Lengths, digest, and the digest of the stored bytes.
const BODY: usize = BODY_1 + 16;
/// Lengths and digest.
const BODY_1: usize = 40;
const TAIL: usize = 24;
const MAGIC: &[u8; 8] = b"voltpack";

/// The decoded footer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footer {
    pub geometry: Geometry,
    /// Bytes of all stored chunks.
    pub data_len: u64,
    /// Digest of the stored chunks' bytes; absent in version 1.
    pub stored: Option<u128>,
    /// Digest of the table and all fields above.
    pub digest: u128,
}

impl Footer {
    /// Makes the footer of a pack with this table, whose stored chunks have the digest `stored`.
    pub fn new(geometry: Geometry, data_len: u64, stored: u128, table: &[u8]) -> Self {
        let mut footer = Self { geometry, data_len, stored: Some(stored), digest: 0 };
        footer.digest = footer.digest_with(table);
        footer
    }

    /// The digest that a footer with this table should have.
    pub fn digest_with(&self, table: &[u8]) -> u128 {
        let mut digest = ByteDigest::default();
        digest.add(table);
        self.digest_after(digest)
    }

    /// As [`Footer::digest_with`], from a running digest of the table.
    pub fn digest_after(&self, mut table: ByteDigest) -> u128 {
        table.add(&self.lengths());
        self.stored.iter().for_each(|stored| table.add(&stored.to_le_bytes()));
        table.finish()
    }

    fn lengths(&self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&self.geometry.memory_len().to_le_bytes());
        bytes[8..12].copy_from_slice(&self.geometry.chunk_len().to_le_bytes());
        bytes[16..].copy_from_slice(&self.data_len.to_le_bytes());
        bytes
    }

    /// The oldest version that has these fields.
    pub fn version(&self) -> u32 {
        if self.stored.is_some() { VERSION } else { 1 }
    }

    /// Encodes the footer.
    pub fn to_bytes(self) -> Vec<u8> {
        let mut bytes = self.lengths().to_vec();
        bytes.extend(self.digest.to_le_bytes());
        bytes.extend(self.stored.iter().flat_map(|stored| stored.to_le_bytes()));
        bytes.extend((bytes.len() as u32).to_le_bytes());
        bytes.extend(self.version().to_le_bytes());
        bytes.extend(checksum::of(&bytes).to_le_bytes());
        bytes.extend(MAGIC);
        bytes
    }

    /// Decodes the footer at the end of a file of `file_len` bytes. `end` is at least [`SHORTEST`] bytes of
    /// the file's end, and [`LEN`] if the file is that long.
    ///
    /// # Errors
    /// The fault, in words.
    pub fn from_bytes(end: &[u8], file_len: u64) -> Result<Self, String> {
        let (before, tail) = end.split_at(end.len() - TAIL);
        if tail[16..] != *MAGIC {
            return Err("is cut off or not a pack: it does not end with a pack's footer".to_owned());
        }
        let damaged = || "is damaged: the checksum of its footer is wrong".to_owned();
        let (body, version) = (u32_at(tail, 0) as usize, u32_at(tail, 4));
        let known = [(1, BODY_1), (VERSION, BODY)].contains(&(version, body));
        // The checksum of a longer footer also covers bytes that this version does not know.
        let start = before.len().checked_sub(if known { body } else { BODY });
        let sound = start.is_some_and(|start| checksum::of(&end[start..before.len() + 8]) == u64_at(tail, 8));
        if version > VERSION && (sound || body != BODY) {
            return Err(format!(
                "has format version {version}; this volt-vmm {} reads versions up to {VERSION}: \
                 use a newer volt-vmm",
                env!("CARGO_PKG_VERSION")
            ));
        }
        let body = &before[start.filter(|_| sound && known).ok_or_else(damaged)?..];
        if u32_at(body, 12) != 0 {
            return Err(damaged());
        }
        let geometry = Geometry::new(u64_at(body, 0), u32_at(body, 8))?;
        let digest = |at: usize| u128::from_le_bytes(body[at..at + 16].try_into().expect("16 bytes"));
        let stored = (version > 1).then(|| digest(BODY_1));
        let footer = Self { geometry, data_len: u64_at(body, 16), stored, digest: digest(24) };
        match footer.file_len() {
            Some(len) if len == file_len => Ok(footer),
            _ => Err(format!(
                "is cut off or damaged: its length of {file_len} bytes is not the one in its footer"
            )),
        }
    }

    /// Offset of the index.
    pub fn index_at(&self) -> u64 {
        self.data_len.next_multiple_of(BLOCK as u64)
    }

    /// Offset of the table.
    pub fn table_at(&self) -> u64 {
        self.index_at() + u64::from(self.geometry.blocks()) * BLOCK as u64
    }

    /// Length of the table in bytes.
    pub fn table_len(&self) -> usize {
        self.geometry.blocks() as usize * ITEM
    }

    /// Length of the footer in bytes.
    pub fn len(&self) -> usize {
        if self.stored.is_some() { LEN } else { SHORTEST }
    }

    fn file_len(&self) -> Option<u64> {
        self.data_len.checked_next_multiple_of(BLOCK as u64)?;
        // Index, table and footer take little more than 4 GiB.
        self.data_len.checked_add(1 << 33)?;
        Some(self.table_at() + (self.table_len() + self.len()) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn footer() -> Footer {
        Footer::new(Geometry::new(1 << 30, 1 << 16).unwrap(), 12_345, 77, b"the table")
    }

    #[test]
    fn footer_comes_back_and_a_newer_version_is_named() {
        let bytes = footer().to_bytes();
        let len = footer().file_len().unwrap();
        assert_eq!(bytes.len(), LEN);
        assert_eq!(Footer::from_bytes(&bytes, len), Ok(footer()));
        assert!(Footer::from_bytes(&bytes, len + 1).unwrap_err().contains("cut off"));
        let mut newer = bytes.clone();
        newer[BODY + 4] = 9;
        let sum = checksum::of(&newer[..BODY + 8]);
        newer[BODY + 8..BODY + 16].copy_from_slice(&sum.to_le_bytes());
        assert!(Footer::from_bytes(&newer, len).unwrap_err().contains("format version 9"));
        // The checksum of a longer footer begins before these bytes.
        newer[BODY] = 200;
        assert!(Footer::from_bytes(&newer, len).unwrap_err().contains("newer volt-vmm"));
        for byte in 0..LEN {
            let mut bad = bytes.clone();
            bad[byte] ^= 0x40;
            assert!(Footer::from_bytes(&bad, len).is_err(), "{byte}");
        }
    }

    #[test]
    fn footer_of_version_1_has_no_digest_of_stored_bytes() {
        let mut old = Footer { stored: None, ..footer() };
        old.digest = old.digest_with(b"the table");
        let bytes = old.to_bytes();
        assert_eq!((bytes.len(), old.version()), (SHORTEST, 1));
        let len = old.file_len().unwrap();
        assert_eq!(Footer::from_bytes(&bytes, len), Ok(old));
        assert_eq!(Footer::from_bytes(&[&[7; 16][..], &bytes].concat(), len), Ok(old), "after a table");
        for byte in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[byte] ^= 0x40;
            assert!(Footer::from_bytes(&bad, len).is_err(), "{byte}");
        }
    }

    #[test]
    fn lengths_that_overflow_are_refused() {
        for data_len in [u64::MAX, u64::MAX - 4096, 1 << 63] {
            let forged = Footer { data_len, ..footer() }.to_bytes();
            assert!(Footer::from_bytes(&forged, 64).is_err());
        }
    }
}
