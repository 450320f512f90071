//! `memory.pack`: guest memory in compressed chunks of one size. Each chunk is found, decoded and verified by
//! itself.
//!
//! ```text
//!  0                     data_len       4 KiB                                                             file's end
//!  +-------+-------+-----+--------------+----------+----------+-----+------------+------------------+--------+
//!  | chunk | chunk | ... | zeros, to a  | block 0  | block 1  | ... | block B-1  | table: an item   | footer |
//!  | as it is stored     | whole 4 KiB  | 256 entries of 16 bytes each          | of 16 bytes for  |  80    |
//!  |                     |              |                                       | each block       |  bytes |
//!  +---------------------+--------------+---------------------------------------+------------------+--------+
//!
//!  entry    place u32 | len u24, kind u8 | checksum u64      kind 0  zero: all 16 bytes are 0, and nothing is stored
//!                                                            1, 2, 3 raw, lz4, zstd: `len` bytes, `place` bytes after
//!                                                                    the place where the block's data begins
//!                                                            4       the same as chunk number `place`, an earlier one
//!  item     checksum u64 | begins u64                        of the block; and where its first stored byte lies
//!  footer   memory_len u64 | chunk_len u32 | 0 u32 | data_len u64 | digest u128 | stored u128
//!           | length of what stands before this u32 | version u32 | checksum u64 | "voltpack"
//! ```
//!
//! All numbers are little-endian, all checksums XXH3-64, the digests XXH3-128. Version 1 has no `stored`; it
//! opens as before.
//!
//! **Verification.** The footer's checksum covers the footer, and identifies a pack. The digest covers the
//! table and the footer's lengths; the table has the checksum of each block; a block has the checksum of each
//! chunk. A chunk's checksum covers its content *before* compression, so it detects a damaged file and an
//! error of the codec alike. The digest thus identifies the content of the whole memory, and opening a pack,
//! which reads footer and table, knows it. A block is verified on its first use, and a chunk on each read,
//! before any byte of it is used.
//!
//! `stored` is the digest of the bytes 0 to `data_len` as they lie in the file, and the digest covers it too.
//! Only `Pack::verify_stored` reads all these bytes: a changed byte of a compressed chunk may decode to the
//! same content. `state.json` names the digest, so another snapshot's pack is refused when it is opened.
//!
//! **Limits of an index.** Chunks are stored in their order, without gaps. The first chunk of a block lies at
//! the start of the block's data, which the table tells. Each other chunk begins where the one before it
//! ends, and the last one ends where the next block's data begins. An entry that points outside the data or
//! into another chunk is refused. No length in the file causes an allocation, except that of the table (at
//! most 16 MiB, and never longer than the file).
//!
//! **Use in place.** A block is read and verified on its first use, and lookups then use it as it is. Entries
//! are not parsed into another form. A block is read and not mapped, because a mapping can change after
//! verification. Truncating a mapped index would end the whole process by SIGBUS, with its other VMs and the
//! embedding program. A read reports an error that names the file, and costs 1 us for the 256 chunks of a
//! block.
//!
//! Equal chunks are stored once. Equal checksums only prompt a comparison, because XXH3 is fast and not
//! secret. A guest could make two pages with equal checksums, and would find one in place of the other.

mod checksum;
pub mod codec;
mod footer;
#[cfg(any(test, feature = "fuzzing"))]
pub mod forging;
pub mod geometry;
mod index;
mod layout;
pub mod reader;
pub mod source;
pub mod walk;
pub mod writer;

#[cfg(test)]
mod bad_tests;
#[cfg(test)]
mod properties;
#[cfg(test)]
pub(crate) mod testing;

pub use codec::{Compression, Decoder};
pub use reader::{ChunkKind, Pack};
pub use writer::{Packing, pack};
