//! Forged packs whose checksums are correct: for tests and tests/fuzz (the feature `fuzzing`).

use super::checksum;
use super::footer::Footer;
use super::geometry::Geometry;
use super::index::{BLOCK, ITEM};

/// A pack with correct checksums of blocks, table and footer over arbitrary content.
#[derive(Clone, Debug)]
pub struct Forged {
    /// The footer's lengths of memory and chunks.
    pub geometry: Geometry,
    /// The bytes before the index.
    pub data: Vec<u8>,
    /// The footer's length of the stored chunks.
    pub data_len: u64,
    /// The blocks.
    pub index: Vec<u8>,
    /// For each block, the table's offset of its data.
    pub begins: Vec<u64>,
}

impl Forged {
    /// The file's bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut table = Vec::with_capacity(self.begins.len() * ITEM);
        for ((number, block), begins) in (0..).zip(self.index.chunks(BLOCK)).zip(&self.begins) {
            table.extend(checksum::of_block(number, block).to_le_bytes());
            table.extend(begins.to_le_bytes());
        }
        let stored = self.data.len().min(usize::try_from(self.data_len).unwrap_or(usize::MAX));
        let stored = checksum::digest(&[&self.data[..stored]]);
        let footer = Footer::new(self.geometry, self.data_len, stored, &table);
        [&self.data[..], &self.index, &table, &footer.to_bytes()].concat()
    }
}
