//! A base's digest, by which a layer knows the base it belongs to.
//!
//! It is the CRC-64/ECMA-182 over the base's length and 64 evenly spread blocks of 4 KiB, the first and the last among them; a
//! shorter base counts whole. So it costs the same for a base of any length, and tells images of different origin apart. It
//! does not notice a change between those blocks: it is there for mistakes, not against anyone who wants to deceive. (The time
//! of the last change would not do in its place: it differs in a copy and stays the same where tools set it.)

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crc::{CRC_64_ECMA_182, Crc, Table};

use super::map::{CLUSTER, Map};

/// Blocks that are looked at.
const BLOCKS: u64 = 64;
/// Bytes of each.
const BLOCK: u64 = 4096;

static CRC: Crc<u64, Table<16>> = Crc::<u64, Table<16>>::new(&CRC_64_ECMA_182);

/// The digest of a base of `len` bytes.
pub fn of_base(base: &File, len: u64) -> io::Result<u64> {
    let mut digest = CRC.digest();
    digest.update(&len.to_le_bytes());
    let last = len.saturating_sub(BLOCK);
    let mut block = [0; BLOCK as usize];
    for number in 0..BLOCKS {
        // Where blocks would overlap they follow each other.
        let at = match len <= BLOCKS * BLOCK {
            true => number * BLOCK,
            false => last / (BLOCKS - 1) * number + last % (BLOCKS - 1) * number / (BLOCKS - 1),
        };
        let Some(left) = len.checked_sub(at).filter(|left| *left > 0) else { break };
        let block = &mut block[..left.min(BLOCK) as usize];
        base.read_exact_at(block, at)?;
        digest.update(block);
    }
    Ok(digest.finalize())
}

/// The digest of a layer over a base with the digest `base`: over that, the map, and a block of up to 64 evenly spread clusters.
pub fn of_layer(base: u64, map: &Map, layer: &File) -> io::Result<u64> {
    let mut digest = CRC.digest();
    digest.update(&base.to_le_bytes());
    digest.update(map.bits());
    let count = map.clusters().count();
    let mut block = [0; BLOCK as usize];
    for cluster in map.clusters().step_by(count.div_ceil(BLOCKS as usize).max(1)) {
        layer.read_exact_at(&mut block, map.data() + cluster * CLUSTER)?;
        digest.update(&block);
    }
    Ok(digest.finalize())
}

/// The checksum of a few bytes.
pub fn of_bytes(bytes: &[u8]) -> u64 {
    CRC.checksum(bytes)
}
