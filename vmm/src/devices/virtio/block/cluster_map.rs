//! A layer's map of its clusters, in its file around the data.
//!
//! ```text
//!   0       4 KiB                      64 KiB aligned                   64 KiB aligned
//!   header  a bit for each cluster     cluster 0, cluster 1, ...        live map: header, a bit for each cluster
//!           (the synced map)           each at its offset, most holes
//! ```
//!
//! The map in memory counts. The file has it twice:
//!
//! - The synced map gets a bit after the cluster's data was synced. Bits are only ever set, so a block of
//!   the map that a power cut left half written is a valid map, too.
//! - The live map ([`super::live_map`]) gets a bit as soon as the cluster is written, without a sync. It
//!   counts during the boot in which it was written, so a killed process loses nothing.
//!
//! Version 1 of the file has no live map. A version 1 layer that is opened for writing becomes version 2.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::{Range, RangeInclusive};
use std::os::unix::fs::FileExt;

use rustix::rand::{GetRandomFlags, getrandom};

use super::bits;
use super::digest;
use super::live_map;
use super::live_map::{LiveMap, Revocation};

/// Bytes of a cluster: a layer has all of a cluster or nothing of it.
pub const CLUSTER: u64 = 64 << 10;
/// The longest base: its map takes 128 MiB of memory.
pub const LONGEST_BASE: u64 = 64 << 40;
const MAGIC: &[u8; 8] = b"VOLTLAYR";
/// In place of the magic in a file that becomes a copy of a layer.
const UNFINISHED: &[u8; 8] = b"VOLTCOPY";
const VERSION: u32 = 2;
/// The previous version, without a live map.
const VERSION_WITHOUT_LIVE_MAP: u32 = 1;
/// Bytes before the map.
const HEADER: u64 = 4096;
/// Used bytes of the header: the magic; the version, the length of a cluster, the [`BaseIdentity`] and the
/// layer's id, little-endian; the CRC-64 of all that.
const HEADER_USED: usize = 8 + 4 + 4 + 8 + 8 + 8 + 8;
/// The map is written in blocks of this length.
const BLOCK: usize = 4096;

/// Identity of the files that a layer lies over, as the layer records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BaseIdentity {
    /// Length in bytes.
    pub len: u64,
    /// See [`digest::of_base`], or [`digest::of_layer`] if a layer lies over the base.
    pub digest: u64,
}

/// The map of a layer.
#[derive(Clone)]
pub struct ClusterMap {
    base: BaseIdentity,
    /// Random, and different in each copy: two layers with the same clusters are not the same.
    id: u64,
    /// Version of the file.
    version: u32,
    /// A bit for each cluster, in whole blocks.
    bits: Vec<u8>,
    /// Blocks that differ from the synced map.
    dirty: BTreeSet<usize>,
    /// The live map. `None` in a file that is only read, or that no other process can open later.
    live: Option<LiveMap>,
}

/// Blocks of the map at the time when they were taken, on their way to the synced map
/// ([`ClusterMap::take_dirty`]).
#[derive(Debug)]
pub struct DirtyBlocks(Vec<(usize, Vec<u8>)>);

impl DirtyBlocks {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Writes the blocks to the synced map. The data of all their clusters was synced before.
    pub fn write(&self, file: &File) -> io::Result<()> {
        self.0.iter().try_for_each(|(block, bits)| file.write_all_at(bits, HEADER + (block * BLOCK) as u64))
    }
}

/// Prints the number of set bits in place of all bits.
impl fmt::Debug for ClusterMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { base, id, version, bits, dirty, live } = self;
        let bits = bits.iter().map(|byte| byte.count_ones()).sum::<u32>();
        f.debug_struct("ClusterMap")
            .field("base", base)
            .field("id", id)
            .field("version", version)
            .field("bits", &bits)
            .field("dirty", dirty)
            .field("live", live)
            .finish()
    }
}

/// Returns the bytes of the bits for a base, in whole blocks.
fn bits_len(base: BaseIdentity) -> u64 {
    base.len.div_ceil(CLUSTER).div_ceil(8).next_multiple_of(BLOCK as u64)
}

/// Returns the offset of the data in the file, behind so many bytes of bits.
fn data_at(bits: u64) -> u64 {
    (HEADER + bits).next_multiple_of(CLUSTER)
}

impl ClusterMap {
    fn blank(base: BaseIdentity, id: u64) -> Self {
        let (version, bits, dirty) = (VERSION, vec![0; bits_len(base) as usize], BTreeSet::new());
        Self { base, id, version, bits, dirty, live: None }
    }

    /// Makes an empty map over `base`, to compute offsets.
    #[cfg(feature = "fuzzing")]
    pub fn of(base: BaseIdentity) -> Self {
        Self::blank(base, 0)
    }

    /// Returns the offset of the data in the file.
    pub fn data(&self) -> u64 {
        data_at(self.bits.len() as u64)
    }

    /// Returns the end of the data in the file, where the live map begins if there is one.
    pub fn end(&self) -> u64 {
        self.data() + self.base.len.next_multiple_of(CLUSTER)
    }

    /// Makes an empty layer over `base` of an empty file. In a file with a name both maps get their blocks
    /// now, so that a full disk never keeps bits of written data out of them.
    pub fn make(file: &File, base: BaseIdentity, has_name: bool) -> io::Result<Self> {
        let mut map = Self::blank(base, 0);
        file.set_len(map.end())?;
        map.renew(file)?;
        if has_name {
            live_map::allocate(file, 0, map.data())?;
            map.live = Some(LiveMap::begin(file, map.end(), map.id, map.bits.len() as u64)?);
        }
        Ok(map)
    }

    /// Returns whether a power cut left `file` before anything was flushed to a layer over `base`. The file
    /// is as long as such a layer, and has only zeros before the data or the mark of
    /// [`ClusterMap::begin_copy`].
    pub fn is_unfinished(file: &File, base: BaseIdentity) -> io::Result<bool> {
        let (bits, len) = (bits_len(base), file.metadata()?.len());
        let end = data_at(bits) + base.len.next_multiple_of(CLUSTER);
        if len != end && len != end + live_map::len_with(bits) {
            return Ok(false);
        }
        let mut header = [0; HEADER as usize];
        file.read_exact_at(&mut header, 0)?;
        let (magic, rest) = header.split_at(MAGIC.len());
        let is_blank = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
        Ok(is_blank(rest)
            && (magic == UNFINISHED
                || is_blank(magic) && is_blank(&bits::read(file, HEADER, bits as usize)?)))
    }

    /// Makes an empty file as long as this layer, and marks it as unfinished until [`ClusterMap::renew`].
    pub fn begin_copy(&self, file: &File) -> io::Result<()> {
        file.set_len(self.end())?;
        file.write_all_at(UNFINISHED, 0)
    }

    /// Gives the layer in `file`, which is empty or a copy, an id of its own.
    pub fn renew(&mut self, file: &File) -> io::Result<()> {
        let mut id = [0; 8];
        getrandom(&mut id[..], GetRandomFlags::empty())?;
        self.id = u64::from_le_bytes(id);
        self.write_header(file)
    }

    fn write_header(&self, file: &File) -> io::Result<()> {
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

    /// Makes `file`, which has a copy of this layer's data, a layer with this map and an id of its own.
    /// Returns the copy's identity.
    pub fn write_copy(&self, file: &File) -> io::Result<BaseIdentity> {
        let mut copy = Self { version: VERSION, live: None, ..self.clone() };
        copy.write_bits(file)?;
        copy.renew(file)?;
        Ok(copy.identity())
    }

    /// Writes the synced map to a copy of this layer's data, which is not a layer until
    /// [`ClusterMap::renew`].
    pub fn write_bits(&self, file: &File) -> io::Result<()> {
        file.write_all_at(&self.bits, HEADER)?;
        file.set_len(self.end())
    }

    /// Returns the identity that a layer over this one records.
    pub fn identity(&self) -> BaseIdentity {
        let digest = digest::of_layer(self.base.digest, self.id, &self.bits);
        BaseIdentity { len: self.base.len, digest }
    }

    /// Reads the map of a layer over `base`. The inner `Err` says what is wrong with the layer.
    pub fn load(file: &File, base: BaseIdentity) -> io::Result<Result<Self, String>> {
        Self::load_over(file, Some(base))
    }

    /// Reads the map of a layer over any base, as [`ClusterMap::load`] does.
    pub fn load_any(file: &File) -> io::Result<Result<Self, String>> {
        Self::load_over(file, None)
    }

    fn load_over(file: &File, base: Option<BaseIdentity>) -> io::Result<Result<Self, String>> {
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
        if !(VERSION_WITHOUT_LIVE_MAP..=VERSION).contains(&half(8)) {
            return Ok(Err(format!(
                "is a layer of version {}; this volt-vmm knows versions up to {VERSION}",
                half(8)
            )));
        }
        if word(HEADER_USED - 8) != digest::of_bytes(&header[..HEADER_USED - 8]) || half(12) != CLUSTER as u32
        {
            return Ok(Err("is a layer with a damaged header".into()));
        }
        let identity = BaseIdentity { len: word(16), digest: word(24) };
        if let Some(base) = base
            && identity != base
        {
            return Ok(Err(format!(
                "is a layer over another base ({} bytes, digest {:016x}; this base: {}, {:016x})",
                identity.len, identity.digest, base.len, base.digest
            )));
        }
        // Before memory of that length is allocated.
        let (len, bits) = (file.metadata()?.len(), bits_len(identity));
        if identity.len > LONGEST_BASE || len < data_at(bits) + identity.len.next_multiple_of(CLUSTER) {
            return Ok(Err(format!("is a layer that is cut off after {len} bytes")));
        }
        let bits = bits::read(file, HEADER, bits as usize)?;
        let (base, id, version) = (identity, word(32), half(8));
        let mut map = Self { base, id, version, bits, dirty: BTreeSet::new(), live: None };
        if version == VERSION
            && len >= map.end() + live_map::len_with(map.bits.len() as u64)
            && let Some(found) = LiveMap::load(file, map.end(), map.id)?
        {
            map.add_live_map(file, found)?;
        }
        Ok(Ok(map))
    }

    /// Adds the clusters that only the live map has.
    fn add_live_map(&mut self, file: &File, live: LiveMap) -> io::Result<()> {
        let Self { bits, dirty, .. } = self;
        let live_bits = live.read(file, bits.len())?;
        for (number, (block, live)) in bits.chunks_mut(BLOCK).zip(live_bits.chunks(BLOCK)).enumerate() {
            if live.iter().all(|byte| *byte == 0) {
                continue; // a block that was a hole keeps taking no memory
            }
            let mut is_new = false;
            for (byte, live) in block.iter_mut().zip(live) {
                is_new |= live & !*byte != 0;
                *byte |= live;
            }
            if is_new {
                dirty.insert(number);
            }
        }
        self.live = Some(live);
        Ok(())
    }

    /// Prepares a loaded layer for writes. `has_name`: another process can open it later.
    pub fn begin_writing(&mut self, file: &File, has_name: bool) -> io::Result<()> {
        if has_name && self.live.is_none() {
            self.live = Some(LiveMap::begin(file, self.end(), self.id, self.bits.len() as u64)?);
        }
        if self.version == VERSION {
            return Ok(());
        }
        self.version = VERSION;
        self.write_header(file)
    }

    /// Prepares a loaded layer for reads only: nothing has to be written.
    pub fn begin_reading(&mut self) {
        self.dirty.clear();
    }

    /// Prepares the revocation of the live map, if there is one.
    ///
    /// # Errors
    /// The host has no descriptor left.
    pub fn revocation(&self, file: &File, name: &str) -> io::Result<Option<Revocation>> {
        self.live.as_ref().map(|live| live.revocation(file, name)).transpose()
    }

    /// Returns whether the layer has a cluster.
    pub fn has(&self, cluster: u64) -> bool {
        self.bits[(cluster / 8) as usize] & 1 << (cluster % 8) != 0
    }

    /// Returns the clusters of a range that the layer has, as ranges in order.
    pub fn present(&self, within: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut at = within.start;
        std::iter::from_fn(move || {
            let start = self.find(at..within.end, true)?;
            at = self.find(start..within.end, false).unwrap_or(within.end);
            Some(start..at)
        })
    }

    /// Returns the first cluster of a range whose presence in the layer is `wanted`.
    fn find(&self, within: Range<u64>, wanted: bool) -> Option<u64> {
        let mut at = within.start;
        while at < within.end {
            let byte = self.bits[(at / 8) as usize];
            let found = if wanted { byte } else { !byte } >> (at % 8);
            if found != 0 {
                return Some(at + u64::from(found.trailing_zeros())).filter(|first| *first < within.end);
            }
            at = (at / 8 + 1) * 8;
        }
        None
    }

    /// Adds these clusters, all of whose data is in `file`. After an error the layer does not have the new
    /// ones.
    pub fn add(&mut self, file: &File, clusters: RangeInclusive<u64>) -> io::Result<()> {
        if clusters.clone().all(|cluster| self.has(cluster)) {
            return Ok(());
        }
        let (first, last) = ((clusters.start() / 8) as usize, (clusters.end() / 8) as usize);
        let before = self.bits[first..=last].to_vec();
        clusters.for_each(|cluster| self.bits[(cluster / 8) as usize] |= 1 << (cluster % 8));
        if let Some(live) = &self.live
            && let Err(error) = live.write(file, first, &self.bits[first..=last])
        {
            self.bits[first..=last].copy_from_slice(&before);
            return Err(error);
        }
        self.dirty.extend(first / BLOCK..=last / BLOCK);
        Ok(())
    }

    /// Adds these clusters to the map of a copy.
    pub fn include(&mut self, clusters: Range<u64>) {
        let mut at = clusters.start;
        while at < clusters.end {
            let whole_byte = at.is_multiple_of(8) && at + 8 <= clusters.end;
            self.bits[(at / 8) as usize] |= if whole_byte { 0xff } else { 1 << (at % 8) };
            at += if whole_byte { 8 } else { 1 };
        }
    }

    /// Takes the blocks that the synced map lacks. The caller syncs the data first, then writes them.
    pub fn take_dirty(&mut self) -> DirtyBlocks {
        let dirty = std::mem::take(&mut self.dirty).into_iter();
        DirtyBlocks(dirty.map(|block| (block, self.bits[block * BLOCK..][..BLOCK].to_vec())).collect())
    }

    /// Returns whether the synced map lacks clusters.
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with a test of each cluster, over ranges that begin and end within bytes and at their ends.
    #[test]
    fn ranges_of_a_map_cover_its_clusters() {
        let mut map = ClusterMap::blank(BaseIdentity { len: 200 * CLUSTER, digest: 0 }, 0);
        let included = [3..4, 6..9, 16..40, 47..48, 64..65, 70..133, 199..200];
        included.iter().for_each(|range| map.include(range.clone()));
        for start in 0..200 {
            for end in start..=200 {
                let found: Vec<_> = map.present(start..end).collect();
                assert!(found.iter().all(|range| start <= range.start && range.start < range.end));
                assert!(found.is_sorted_by(|one, next| one.end < next.start), "{found:?}");
                let clusters = found.into_iter().flatten();
                let expected = (start..end).filter(|at| included.iter().any(|range| range.contains(at)));
                assert!(clusters.eq(expected), "{start}..{end}");
            }
        }
    }
}
