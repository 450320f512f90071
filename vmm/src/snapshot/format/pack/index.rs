//! The index of a pack: entries, blocks of entries, and the table of blocks, as [`super`] draws them.

use super::checksum;
use super::codec::Encoding;
use super::geometry::{ENTRIES, Geometry};

/// Bytes of an entry.
const ENTRY: usize = 16;
/// Bytes of a block.
pub const BLOCK: usize = ENTRY * ENTRIES as usize;
/// Bytes of an item of the table.
pub const ITEM: usize = 16;
/// Bits of an entry's length. The longest chunk takes 22.
const LEN_BITS: u32 = 24;
/// Kind of a repeated chunk. Smaller numbers are those of [`Encoding`].
const SAME: u8 = 4;

const _: () = assert!(BLOCK == 4096);
const _: () = assert!(*super::geometry::CHUNK_LENS.end() < 1 << LEN_BITS);

/// A decoded entry of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexEntry {
    Zero,
    /// `place` counts from the start of the block's data.
    Stored {
        encoding: Encoding,
        place: u32,
        len: u32,
        checksum: u64,
    },
    Same {
        of: u32,
        checksum: u64,
    },
}

impl IndexEntry {
    fn to_bytes(self) -> [u8; ENTRY] {
        let (place, kind, len, checksum) = match self {
            Self::Zero => (0, 0, 0, 0),
            Self::Stored { encoding, place, len, checksum } => (place, encoding as u8, len, checksum),
            Self::Same { of, checksum } => (of, SAME, 0, checksum),
        };
        let mut bytes = [0; ENTRY];
        bytes[..4].copy_from_slice(&place.to_le_bytes());
        bytes[4..8].copy_from_slice(&(u32::from(kind) << LEN_BITS | len).to_le_bytes());
        bytes[8..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Decodes an entry; nothing if the bytes are invalid.
    fn from_bytes(bytes: &[u8; ENTRY]) -> Option<Self> {
        let (place, word) = (u32_at(bytes, 0), u32_at(bytes, 4));
        let (kind, len) = ((word >> LEN_BITS) as u8, word & ((1 << LEN_BITS) - 1));
        let checksum = u64_at(bytes, 8);
        match (kind, Encoding::of(kind)) {
            (0, _) if *bytes == [0; ENTRY] => Some(Self::Zero),
            (SAME, _) if len == 0 => Some(Self::Same { of: place, checksum }),
            (_, Some(encoding)) => Some(Self::Stored { encoding, place, len, checksum }),
            _ => None,
        }
    }
}

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// A verified block with at least one stored chunk.
#[derive(Debug)]
pub struct IndexBlock {
    bytes: Box<[u8; BLOCK]>,
    /// Offset of the block's data in the file.
    begins: u64,
}

impl IndexBlock {
    /// Verifies block `number`. Returns nothing for a block of zeros: a hole in the file may hold any number
    /// of them.
    ///
    /// # Errors
    /// The fault, in words.
    pub fn new(
        bytes: Box<[u8; BLOCK]>,
        number: u32,
        geometry: &Geometry,
        table: &BlockTable,
        data_len: u64,
    ) -> Result<Option<Self>, String> {
        if checksum::of_block(number, &bytes[..]) != table.checksum(number) {
            return Err(format!("is damaged: the checksum of block {number} of its index is wrong"));
        }
        let begins = table.begins(number);
        let block = Self { bytes, begins };
        let impossible = |chunk| format!("has an invalid index entry for chunk {chunk}");
        let mut end = begins;
        for entry in 0..ENTRIES {
            let chunk = number * ENTRIES + entry;
            let read = IndexEntry::from_bytes(block.bytes_of(entry)).ok_or_else(|| impossible(chunk))?;
            let possible = match read {
                _ if entry >= geometry.entries_of(number) => read == IndexEntry::Zero,
                IndexEntry::Zero => true,
                IndexEntry::Same { of, .. } => of < chunk,
                IndexEntry::Stored { encoding, place, len, .. } => {
                    let whole = geometry.len_of(chunk);
                    let fits = if encoding == Encoding::Raw {
                        len as usize == whole
                    } else {
                        len > 0 && (len as usize) < whole
                    };
                    let follows = begins + u64::from(place) == end;
                    end += u64::from(len);
                    fits && follows
                }
            };
            if !possible {
                return Err(impossible(chunk));
            }
        }
        if end != table.ends(number, data_len) {
            return Err(format!(
                "has an inconsistent index: the entries of block {number} do not match the length of its data"
            ));
        }
        Ok(Some(block).filter(|block| block.bytes.iter().any(|byte| *byte != 0)))
    }

    fn bytes_of(&self, entry: u32) -> &[u8; ENTRY] {
        let at = entry as usize * ENTRY;
        self.bytes[at..at + ENTRY].try_into().expect("an entry's bytes")
    }

    /// The entry of a chunk in this block.
    pub fn entry(&self, chunk: u32) -> IndexEntry {
        IndexEntry::from_bytes(self.bytes_of(chunk % ENTRIES)).expect("the block was verified")
    }

    /// The file offset of a place in this block's data.
    pub fn offset(&self, place: u32) -> u64 {
        self.begins + u64::from(place)
    }
}

/// Items of a leaf of the table.
const LEAF: usize = 256;
/// Bytes of the table that [`BlockTable::push`] takes at once.
pub const TABLE_STEP: usize = LEAF * ITEM;
static NO_ITEMS: [u8; TABLE_STEP] = [0; TABLE_STEP];

/// The table of blocks, as it lies in the file. A leaf of zeros takes no memory: the file may have a hole
/// there.
#[derive(Debug, Default)]
pub struct BlockTable {
    leaves: Vec<Option<Box<[u8]>>>,
    /// Number of blocks.
    count: usize,
}

impl BlockTable {
    /// Appends the file's next [`TABLE_STEP`] bytes, or the rest.
    pub fn push(&mut self, bytes: &[u8]) {
        self.count += bytes.len() / ITEM;
        self.leaves.push(bytes.iter().any(|byte| *byte != 0).then(|| bytes.into()));
    }

    /// Checks the order of the blocks' data.
    ///
    /// # Errors
    /// The fault, in words.
    pub fn check(&self, data_len: u64) -> Result<(), String> {
        let blocks = self.count as u32;
        let first = (0..blocks.min(1)).all(|block| self.begins(block) == 0);
        let order = (0..blocks).all(|block| self.begins(block) <= self.ends(block, data_len));
        if first && order { Ok(()) } else { Err("has an index whose blocks are out of order".to_owned()) }
    }

    fn item(&self, block: usize) -> &[u8] {
        let leaf = self.leaves[block / LEAF].as_deref().unwrap_or(&NO_ITEMS);
        &leaf[block % LEAF * ITEM..][..ITEM]
    }

    fn checksum(&self, block: u32) -> u64 {
        u64_at(self.item(block as usize), 0)
    }

    fn begins(&self, block: u32) -> u64 {
        u64_at(self.item(block as usize), 8)
    }

    fn ends(&self, block: u32, data_len: u64) -> u64 {
        let next = block as usize + 1;
        if next < self.count { u64_at(self.item(next), 8) } else { data_len }
    }
}

/// Builds an index, chunk after chunk.
#[derive(Debug, Default)]
pub struct IndexBuilder {
    entries: Vec<u8>,
    begins: Vec<u64>,
    /// Offset for the next stored chunk.
    end: u64,
}

impl IndexBuilder {
    /// Adds a zero chunk.
    pub fn zero(&mut self) {
        self.push(|_| IndexEntry::Zero);
    }

    /// Adds a chunk whose bytes follow those of the last stored chunk.
    pub fn stored(&mut self, encoding: Encoding, len: u32, checksum: u64) {
        self.push(|place| IndexEntry::Stored { encoding, place, len, checksum });
        self.end += u64::from(len);
    }

    /// Adds a chunk that repeats the earlier stored chunk `of`.
    pub fn same(&mut self, of: u32, checksum: u64) {
        self.push(|_| IndexEntry::Same { of, checksum });
    }

    fn push(&mut self, entry: impl FnOnce(u32) -> IndexEntry) {
        if self.entries.len().is_multiple_of(BLOCK) {
            self.begins.push(self.end);
        }
        let begins = self.begins.last().copied().unwrap_or_default();
        let place = (self.end - begins) as u32; // of 256 chunks, at most 512 MiB
        self.entries.extend(entry(place).to_bytes());
    }

    /// Bytes stored so far.
    pub fn data_len(&self) -> u64 {
        self.end
    }

    /// Returns the bytes of the blocks and of the table.
    pub fn finish(mut self) -> (Vec<u8>, Vec<u8>) {
        self.entries.resize(self.entries.len().next_multiple_of(BLOCK), 0);
        let mut table = Vec::with_capacity(self.begins.len() * ITEM);
        for ((number, bytes), begins) in (0..).zip(self.entries.chunks(BLOCK)).zip(&self.begins) {
            table.extend(checksum::of_block(number, bytes).to_le_bytes());
            table.extend(begins.to_le_bytes());
        }
        (self.entries, table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl BlockTable {
        fn of(bytes: &[u8]) -> Self {
            let mut table = Self::default();
            bytes.chunks(TABLE_STEP).for_each(|step| table.push(step));
            table
        }
    }

    #[test]
    fn sparse_index_equals_its_bytes() {
        let mut bytes = vec![0; 600 * ITEM];
        for (block, begins) in [(512_usize, 7_u64), (599, 9)] {
            bytes[block * ITEM..][..8].copy_from_slice(&(block as u64).to_le_bytes());
            bytes[block * ITEM + 8..][..8].copy_from_slice(&begins.to_le_bytes());
        }
        (513..599).for_each(|block| bytes[block * ITEM + 8] = 7);
        let table = BlockTable::of(&bytes);
        table.check(9).unwrap();
        table.check(8).unwrap_err();
        assert!(table.leaves[..2].iter().all(Option::is_none));
        assert_eq!([0, 511, 512, 599].map(|block| table.checksum(block)), [0, 0, 512, 599]);
        assert_eq!([0, 510, 511, 598, 599].map(|block| table.ends(block, 11)), [0, 0, 7, 9, 11]);
        bytes[598 * ITEM + 8] = 0;
        BlockTable::of(&bytes).check(9).unwrap_err();
    }

    #[test]
    fn index_entry_survives_encoding() {
        for entry in [
            IndexEntry::Zero,
            IndexEntry::Stored { encoding: Encoding::Raw, place: 0, len: 2 << 20, checksum: u64::MAX },
            IndexEntry::Stored { encoding: Encoding::Zstd, place: (512 << 20) - 1, len: 1, checksum: 0 },
            IndexEntry::Same { of: (1 << 28) - 1, checksum: 7 },
        ] {
            assert_eq!(IndexEntry::from_bytes(&entry.to_bytes()), Some(entry));
        }
        assert_eq!(IndexEntry::from_bytes(&[0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(IndexEntry::from_bytes(&[0xff; 16]), None);
        assert_eq!(IndexEntry::from_bytes(&[0, 0, 0, 0, 1, 0, 0, SAME, 0, 0, 0, 0, 0, 0, 0, 0]), None);
    }

    /// A hole of 4 GiB in a file may hold a million blocks of zeros.
    #[test]
    fn block_of_zeros_takes_no_memory() {
        let geometry = Geometry::new(2 << 20, 4096).unwrap();
        let mut builder = IndexBuilder::default();
        (0..256).for_each(|_| builder.zero());
        (0..255).for_each(|_| builder.zero());
        builder.stored(Encoding::Raw, 4096, 7);
        let data_len = builder.data_len();
        let (blocks, table) = builder.finish();
        let table = BlockTable::of(&table);
        table.check(data_len).unwrap();
        let block = |number: u32| {
            let bytes = blocks[number as usize * BLOCK..][..BLOCK].to_vec().into_boxed_slice();
            IndexBlock::new(bytes.try_into().unwrap(), number, &geometry, &table, data_len).unwrap()
        };
        assert!(block(0).is_none());
        assert!(matches!(block(1).unwrap().entry(511), IndexEntry::Stored { len: 4096, checksum: 7, .. }));
    }
}

#[cfg(test)]
#[path = "index_exhaustive.rs"]
mod exhaustive;
