//! A layer's map of the clusters that it has, in its file before the data.
//!
//! ```text
//!   0       4 KiB                      64 KiB aligned
//!   header  a bit for each cluster     cluster 0, cluster 1, ... each at its place, most of them holes
//! ```
//!
//! The map in memory is what counts; the file's follows when the data that it speaks of is there. Bits are only ever set, so
//! that a block of the map that was half written when the power went is a map too: of the clusters before or after.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::rand::{GetRandomFlags, getrandom};

use super::digest;

/// Bytes that are present together or not.
pub const CLUSTER: u64 = 64 << 10;
/// The longest base: its map takes 128 MiB of memory.
pub const LONGEST_BASE: u64 = 64 << 40;
const MAGIC: &[u8; 8] = b"VOLTLAYR";
const VERSION: u32 = 1;
/// Bytes before the map.
const HEADER: u64 = 4096;
/// What of them is used: the magic; the version, the length of a cluster, what [`Base`] has and the layer's id, little-endian;
/// the CRC-64 of all that.
const HEADER_USED: usize = 8 + 4 + 4 + 8 + 8 + 8 + 8;
/// The map is written in blocks of this length.
const BLOCK: usize = 4096;

/// What a layer says of what it lies over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Base {
    /// Bytes.
    pub len: u64,
    /// See [`digest::of_base`], and [`digest::of_layer`] where that is a layer too.
    pub digest: u64,
}

/// The map.
#[derive(Clone)]
pub struct Map {
    base: Base,
    /// By chance, and another in each copy: two layers with the same clusters are not the same.
    id: u64,
    /// Whole blocks.
    bits: Vec<u8>,
    /// Blocks that the file does not have as they are here.
    dirty: BTreeSet<usize>,
}

/// Without its thousands of bits.
impl fmt::Debug for Map {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { base, id, bits, dirty } = self;
        let bits = bits.iter().map(|byte| byte.count_ones()).sum::<u32>();
        f.debug_struct("Map")
            .field("base", base)
            .field("id", id)
            .field("bits", &bits)
            .field("dirty", dirty)
            .finish()
    }
}

impl Map {
    fn blank(base: Base, id: u64) -> Self {
        let bytes = base.len.div_ceil(CLUSTER).div_ceil(8).next_multiple_of(BLOCK as u64);
        Self { base, id, bits: vec![0; bytes as usize], dirty: BTreeSet::new() }
    }

    /// Where the data begins in the file.
    pub fn data(&self) -> u64 {
        (HEADER + self.bits.len() as u64).next_multiple_of(CLUSTER)
    }

    /// Makes an empty layer over `base` of an empty file. The map has its place on the host from the start, so that a full disk
    /// never keeps data out of it that was written; not in a file without a name, which nobody can open once this process has gone.
    pub fn make(file: &File, base: Base) -> io::Result<Self> {
        let mut map = Self::blank(base, 0);
        file.set_len(map.data() + base.len.next_multiple_of(CLUSTER))?;
        if file.metadata()?.nlink() > 0 {
            match fallocate(file, FallocateFlags::empty(), 0, map.data()) {
                Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {}
                Err(refused) => return Err(refused.into()),
            }
        }
        map.renew(file)?;
        Ok(map)
    }

    /// Gives the layer in `file`, which is empty or a copy, an id of its own.
    pub fn renew(&mut self, file: &File) -> io::Result<()> {
        let mut id = [0; 8];
        getrandom(&mut id[..], GetRandomFlags::empty())?;
        self.id = u64::from_le_bytes(id);
        let mut header = Vec::with_capacity(HEADER_USED);
        header.extend_from_slice(MAGIC);
        header.extend_from_slice(&VERSION.to_le_bytes());
        header.extend_from_slice(&(CLUSTER as u32).to_le_bytes());
        header.extend_from_slice(&self.base.len.to_le_bytes());
        header.extend_from_slice(&self.base.digest.to_le_bytes());
        header.extend_from_slice(&self.id.to_le_bytes());
        header.extend_from_slice(&digest::of_bytes(&header).to_le_bytes());
        file.write_all_at(&header, 0)
    }

    /// What a layer over this one is to name.
    pub fn named(&self) -> Base {
        let digest = digest::of_layer(self.base.digest, self.id, &self.bits);
        Base { len: self.base.len, digest }
    }

    /// Reads a layer's map. `Err` in the result says what is wrong with the layer.
    pub fn load(file: &File, base: Base) -> io::Result<Result<Self, String>> {
        let mut header = [0; HEADER_USED];
        match file.read_exact_at(&mut header, 0) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => header.fill(0),
            done => done?,
        }
        let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("8 bytes"));
        let half = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("4 bytes"));
        if header[..8] != *MAGIC {
            return Ok(Err("is not a layer".into()));
        }
        if half(8) != VERSION {
            return Ok(Err(format!("is a layer of version {}; this volt-vmm knows {VERSION}", half(8))));
        }
        if word(HEADER_USED - 8) != digest::of_bytes(&header[..HEADER_USED - 8]) || half(12) != CLUSTER as u32
        {
            return Ok(Err("is a layer with a damaged header".into()));
        }
        let named = Base { len: word(16), digest: word(24) };
        if named != base {
            return Ok(Err(format!(
                "is a layer over another base, of {} bytes and digest {:016x}, where this one has {} and {:016x}",
                named.len, named.digest, base.len, base.digest
            )));
        }
        let mut map = Self::blank(base, word(32));
        let len = file.metadata()?.len();
        if len < map.data() + base.len.next_multiple_of(CLUSTER) {
            return Ok(Err(format!("is a layer of which only {len} bytes are left")));
        }
        file.read_exact_at(&mut map.bits, HEADER)?;
        Ok(Ok(map))
    }

    /// Whether the layer has a cluster.
    pub fn has(&self, cluster: u64) -> bool {
        self.bits[(cluster / 8) as usize] & 1 << (cluster % 8) != 0
    }

    /// The layer has a cluster now.
    pub fn add(&mut self, cluster: u64) {
        if !self.has(cluster) {
            let byte = (cluster / 8) as usize;
            self.bits[byte] |= 1 << (cluster % 8);
            self.dirty.insert(byte / BLOCK);
        }
    }

    /// Whether the file has it as it is here.
    pub fn is_written(&self) -> bool {
        self.dirty.is_empty()
    }

    /// Writes what the file does not have. It counts as written after [`Map::written`].
    pub fn write(&self, file: &File) -> io::Result<()> {
        for block in &self.dirty {
            let start = block * BLOCK;
            file.write_all_at(&self.bits[start..start + BLOCK], HEADER + start as u64)?;
        }
        Ok(())
    }

    pub fn written(&mut self) {
        self.dirty.clear();
    }
}
