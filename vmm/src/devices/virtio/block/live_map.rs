//! A layer's live map: a copy of its map that follows every write at once, through the page cache and
//! without a sync.
//!
//! The page cache outlives a killed process: all its writes are in the file for as long as the host runs, in
//! their order. A power cut can lose them: the map may be on disk without its data. The live map therefore
//! carries the id of the boot in which it was written ([proc_sys_kernel(5)], `random/boot_id`), and counts
//! in that boot only. In a later boot the layer is as it was last flushed, or as the VM's orderly end left
//! it. The same holds after a failed sync: the kernel may have dropped pages from the page cache, so the
//! live map is revoked.
//!
//! The page cache lives as long as the mount, which may end before the boot does. If the layer's storage
//! fails so that the file system turns read-only or goes away, the live map cannot be revoked. After another
//! mount in the same boot it counts, though its data may be lost. An error in the log tells the user to
//! remove the layer.
//!
//! ```text
//!   0                                                     4 KiB
//!   magic, the layer's id, the boot's id, their CRC-64    a bit for each cluster
//! ```
//!
//! [proc_sys_kernel(5)]: https://man7.org/linux/man-pages/man5/proc_sys_kernel.5.html

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, retry_on_intr};

use super::bits;
use super::digest;
use crate::paths;

/// File with the boot's id, 36 characters.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
const MAGIC: &[u8; 8] = b"VOLTLIVE";
/// Bytes before the bits.
const HEADER: u64 = 4096;
/// The magic, the layer's id, the boot's and the CRC-64, little-endian.
const HEADER_USED: usize = 8 + 8 + 16 + 8;

/// Returns the length of a live map with so many bytes of bits.
pub fn len_with(bits: u64) -> u64 {
    HEADER + bits
}

/// A live map that counts in this boot.
#[derive(Clone, Debug)]
pub struct LiveMap {
    /// Offset of the live map in the layer's file.
    at: u64,
}

impl LiveMap {
    /// Makes an empty live map of `len` bytes at the end of the layer `id`, in place of any previous one.
    ///
    /// # Errors
    /// The host has no space for it, or does not report its boot id.
    pub fn begin(file: &File, at: u64, id: u64, len: u64) -> io::Result<Self> {
        let boot = boot_id()?;
        // The header comes last: without it the map does not count.
        file.set_len(at)?;
        file.set_len(at + len_with(len))?;
        allocate(file, at, len_with(len))?;
        file.write_all_at(&header(id, boot), at)?;
        Ok(Self { at })
    }

    /// Reads the live map at the end of the layer `id`, if it was written in this boot. The file has room
    /// for one.
    ///
    /// # Errors
    /// The file cannot be read, or the host does not report its boot id.
    pub fn load(file: &File, at: u64, id: u64) -> io::Result<Option<Self>> {
        let mut found = [0; HEADER_USED];
        file.read_exact_at(&mut found, at)?;
        Ok((found == header(id, boot_id()?)).then_some(Self { at }))
    }

    /// Prepares the revocation of the live map.
    ///
    /// # Errors
    /// The host has no descriptor left.
    pub fn revocation(&self, file: &File, name: &str) -> io::Result<Revocation> {
        Ok(Revocation { file: file.try_clone()?, name: name.to_owned(), at: self.at })
    }

    /// Reads the map's bits.
    pub fn read(&self, file: &File, len: usize) -> io::Result<Vec<u8>> {
        bits::read(file, self.at + HEADER, len)
    }

    /// Writes the map's bytes from byte `first` on.
    pub fn write(&self, file: &File, first: usize, bytes: &[u8]) -> io::Result<()> {
        file.write_all_at(bytes, self.at + HEADER + first as u64)
    }
}

/// Revokes a layer's live map for later opens. This process continues with its map in memory.
#[derive(Debug)]
pub struct Revocation {
    file: File,
    name: String,
    at: u64,
}

impl Revocation {
    /// Returns the name that the user gave to the layer.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Overwrites the header, so that the map counts in no boot.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn revoke(&self) -> io::Result<()> {
        self.file.write_all_at(&[0; HEADER_USED], self.at)
    }
}

fn header(id: u64, boot: u128) -> [u8; HEADER_USED] {
    let mut header = [0; HEADER_USED];
    header[..8].copy_from_slice(MAGIC);
    header[8..16].copy_from_slice(&id.to_le_bytes());
    header[16..32].copy_from_slice(&boot.to_le_bytes());
    let crc = digest::of_bytes(&header[..32]);
    header[32..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// Reads the id of the host's boot.
fn boot_id() -> io::Result<u128> {
    let text = paths::read_text(BOOT_ID)?;
    let digits: String = text.trim().chars().filter(|digit| *digit != '-').collect();
    u128::from_str_radix(&digits, 16)
        .map_err(|_| io::Error::other(format!("{BOOT_ID} holds {text:?}, which is not a boot id")))
}

/// Allocates the blocks of a range of a file, if the file system can.
pub fn allocate(file: &File, at: u64, len: u64) -> io::Result<()> {
    match retry_on_intr(|| fallocate(file, FallocateFlags::empty(), at, len)) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(refused) => Err(refused.into()),
    }
}

/// Changes the live map of the layer `id` to one of another boot.
#[cfg(test)]
pub fn pretend_reboot(file: &File, at: u64, id: u64) {
    file.write_all_at(&header(id, boot_id().unwrap() ^ 1), at).unwrap();
}
