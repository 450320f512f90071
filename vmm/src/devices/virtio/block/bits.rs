//! Reads the bits of a layer's maps from its file. A map may have 128 MiB of bits, and a file of a few KiB
//! may have such a map in a hole.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// Reads `len` bytes at `at`. Holes are not read, so that they take no memory.
pub fn read(file: &File, at: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut bits = vec![0; len];
    let end = at + len as u64;
    let mut done = at;
    while done < end {
        let (start, stop) = match rustix::fs::seek(file, SeekFrom::Data(done)) {
            Ok(start) if start < end => (start, rustix::fs::seek(file, SeekFrom::Hole(start))?.min(end)),
            Ok(_) | Err(Errno::NXIO) => break,
            // A block device reports no holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => (done, end),
            Err(errno) => return Err(errno.into()),
        };
        file.read_exact_at(&mut bits[(start - at) as usize..(stop - at) as usize], start)?;
        done = stop;
    }
    // A file that ends before its map was truncated meanwhile: the rest is not a hole.
    let metadata = file.metadata()?;
    if metadata.is_file() && metadata.len() < end {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 128 << 20;

    /// Returns the resident pages of a vector.
    fn resident(bits: &[u8]) -> usize {
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        let (first, last) = (bits.as_ptr() as usize / 4096 + 1, (bits.as_ptr() as usize + bits.len()) / 4096);
        let mut entries = vec![0; (last - first) * 8];
        pagemap.read_exact_at(&mut entries, first as u64 * 8).unwrap();
        entries.chunks(8).filter(|entry| entry[7] & 0xc0 != 0).count()
    }

    #[test]
    fn holes_of_a_map_take_no_memory_and_data_is_read() {
        let file = File::from(rustix::fs::memfd_create("map", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        file.set_len(4096 + LEN as u64).unwrap();
        let bits = read(&file, 4096, LEN).unwrap();
        assert_eq!(resident(&bits), 0);
        for (at, byte) in [(0, 1), (70_000, 2), (LEN as u64 - 1, 3)] {
            file.write_all_at(&[byte], 4096 + at).unwrap();
        }
        let bits = read(&file, 4096, LEN).unwrap();
        assert_eq!([bits[0], bits[70_000], bits[LEN - 1]], [1, 2, 3]);
        assert!(resident(&bits) <= 4 * 32, "{}", resident(&bits));
        let of_one_block = read(&file, 4096 + 69_632, 4096).unwrap();
        assert_eq!(of_one_block.iter().position(|byte| *byte != 0), Some(70_000 - 69_632));
        file.set_len(LEN as u64).unwrap();
        let error = read(&file, 4096, LEN).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
