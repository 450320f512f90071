//! A base's digest, by which a layer recognizes its base.
//!
//! It is the CRC-64/ECMA-182 over the base's length, its first 4 KiB, where file systems keep their
//! identity, and 16 evenly spread sectors, the last among them. A shorter base counts whole. A digest costs
//! the same for a base of any length, some microseconds with a warm page cache, and tells images of
//! different origin apart. Changes between those sectors go unnoticed: the digest catches mistakes, not
//! attacks. (The modification time would not do in its place: it differs in a copy, and stays the same if
//! tools set it.)

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crc::{CRC_64_ECMA_182, Crc, Table};

use super::bounce::BounceBuffer;
use super::request::SECTOR;

/// Bytes at the start.
const HEAD: u64 = 4096;
/// Sectors that count beside the start.
const SECTORS: u64 = 16;

static CRC: Crc<u64, Table<16>> = Crc::<u64, Table<16>>::new(&CRC_64_ECMA_182);

/// Largest alignment that direct I/O needs for offsets, lengths and memory.
const ALIGNED: u64 = 4096;

/// Returns the digest of a base of `len` bytes, which may be open for direct I/O.
pub fn of_base(base: &File, len: u64) -> io::Result<u64> {
    let mut digest = CRC.digest();
    digest.update(&len.to_le_bytes());
    let mut bounce = BounceBuffer::new(2 * HEAD as usize);
    let mut add = |at: u64, count: u64| {
        let (start, end) = (at / ALIGNED * ALIGNED, (at + count).next_multiple_of(ALIGNED));
        let bytes = &mut bounce.bytes()[..(end - start) as usize];
        let needed = (at - start) as usize..(at + count - start) as usize;
        read_at_least(base, bytes, start, needed.end)?;
        digest.update(&bytes[needed]);
        Ok::<_, io::Error>(())
    };
    let head = len.min(HEAD);
    add(0, head)?;
    let left = len - head;
    if left <= SECTORS * SECTOR {
        for at in (0..left).step_by(SECTOR as usize) {
            add(head + at, SECTOR.min(left - at))?;
        }
    } else {
        let (last, steps) = (left - SECTOR, SECTORS - 1);
        for number in 0..SECTORS {
            add(head + last / steps * number + last % steps * number / steps, SECTOR)?;
        }
    }
    Ok(digest.finalize())
}

/// Returns the digest of several files with these digests, in order. Each file counts, however short it is.
pub fn of_parts(digests: impl IntoIterator<Item = u64>) -> u64 {
    let mut digest = CRC.digest();
    digests.into_iter().for_each(|part| digest.update(&part.to_le_bytes()));
    digest.finalize()
}

/// Reads from `at` on until `bytes` has `needed` of them. The file may end before the buffer does.
fn read_at_least(file: &File, bytes: &mut [u8], at: u64, needed: usize) -> io::Result<()> {
    let mut done = 0;
    while done < needed {
        match file.read_at(&mut bytes[done..], at + done as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns the digest of a layer with this id and map, over a base with the digest `base`.
pub fn of_layer(base: u64, id: u64, map: &[u8]) -> u64 {
    let mut digest = CRC.digest();
    digest.update(&base.to_le_bytes());
    digest.update(&id.to_le_bytes());
    digest.update(map);
    digest.finalize()
}

/// Returns the checksum of a few bytes.
pub fn of_bytes(bytes: &[u8]) -> u64 {
    CRC.checksum(bytes)
}
