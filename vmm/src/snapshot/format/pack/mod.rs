//! `memory.pack`: guest memory in chunks of one size, compressed, each of which is found, decoded and verified by itself.
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
//! All numbers are little-endian, all checksums XXH3-64, the digests XXH3-128. Version 1 has no `stored`; it opens as before.
//!
//! **What vouches for what.** The footer's checksum is of the footer, and says whether there is a pack at all. The digest is of
//! the table and the footer's lengths; the table has the checksum of each block; a block has the checksum of each chunk, taken
//! over its content *before* compression, so that it notices a damaged file and a codec's error alike. So the digest names the
//! content of the whole memory, and names it as soon as the footer and the table have been read, which is when a pack is opened.
//! A block is verified when it is first used, a chunk each time that it is read, before anyone sees a byte of it.
//!
//! `stored` is the digest of the bytes 0 to `data_len` as they lie in the file, and the digest covers it too. Only `snapshot verify`
//! reads all these bytes: a changed byte of a compressed chunk may decode to the same content. `state.json` names the digest, so
//! another snapshot's pack is refused when it is opened.
//!
//! **What an index cannot say.** Chunks are stored in their order, without gaps: the first of a block lies where the table says that
//! the block's data begins, each other one where the one before it ends, and the last one ends where the next block's data begins.
//! So there is no entry that points outside the data or into another chunk; whatever has one is refused. Nothing is allocated by
//! what a file says of itself, but for the table (at most 16 MiB, and never longer than the file).
//!
//! **Used as it lies there.** A block is read on its first use, checked, and then looked up in as it is: entries are never parsed
//! into anything else. (It is read, not mapped. A file that is truncated while its index is mapped ends the whole process by
//! SIGBUS, other VMs and an embedding program included, where a read has an error that names the file; and what has been
//! verified in a mapping can change afterwards. A read costs 1 us for the 256 chunks of a block.)
//!
//! What is equal is stored once. Equal checksums are only the reason to compare: XXH3 is fast and no secret, so a guest that wanted
//! to could have two pages with the same one, and would find one of them in place of the other.

mod checksum;
pub mod codec;
mod footer;
#[cfg(any(test, feature = "fuzzing"))]
pub mod forging;
mod geometry;
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

pub use crate::snapshot::format::source::MemorySource;
pub use codec::{Compression, Decoder, Encoding};
pub use footer::VERSION;
pub use geometry::Geometry;
pub use reader::{ChunkKind, Pack};
pub use writer::{Packing, pack};
