//! A disk of two files: a base that is only read and may be shared by any number of VMs, and a layer that has what this VM
//! wrote. What is in the layer, by clusters of 64 KiB, its map says.
//!
//! ```text
//!   read   ──> the layer where it has the cluster, else the base
//!   write  ──> the layer, after what the write leaves of its first and last cluster was copied there from the base
//!   flush  ──> fdatasync, then the map, then fdatasync: the file's map never speaks of data that is not safe
//! ```

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::digest;
use super::file::{HostFile, Use};
use super::map::{Base, CLUSTER, LONGEST_BASE, Map};
use super::request::{SECTOR, Stretch};
use super::storage::Storage;
use crate::config::FileRef;
use crate::config::devices::Cache;
use crate::devices::virtio::chain::Buffers;
use crate::error::{Error, Result};

/// A base and a layer over it.
#[derive(Debug)]
pub struct Overlay {
    base: HostFile,
    layer: HostFile,
    /// What is to be safe after a flush.
    cache: Cache,
    /// Bytes of the base.
    len: u64,
    map: Map,
    scratch: Box<[u8]>,
}

impl Overlay {
    /// Opens a layer over a base; an empty or missing file becomes an empty layer unless it is only read.
    ///
    /// # Errors
    /// Those of [`HostFile::open`]; the layer is none, or belongs to another base.
    pub fn open(id: &str, base: &FileRef, layer: &FileRef, wanted: Use, cache: Cache) -> Result<Self> {
        let base = HostFile::open(id, base, Use::Read)?;
        let unreadable = |source| Error::file("read disk", base.name(), source);
        let len = base.len().map_err(unreadable)?;
        let refused = |problem: String| Error::config("disks", format!("{id}: {problem}"));
        if !(SECTOR..=LONGEST_BASE).contains(&len) {
            let name = base.name();
            return Err(refused(format!("{name} has {len} bytes; a base has {SECTOR} to {LONGEST_BASE}")));
        }
        let layer = HostFile::open(id, layer, wanted)?;
        if layer.is_block_device() {
            return Err(refused(format!("layer {} must be a regular file", layer.name())));
        }
        let named = Base { len, digest: digest::of_base(base.file(), len).map_err(unreadable)? };
        let failed = |act, source| Error::file(act, layer.name(), source);
        let map = match layer.len().map_err(|source| failed("read layer", source))? {
            0 if wanted == Use::Make => {
                Map::make(layer.file(), named).map_err(|source| failed("make layer", source))?
            }
            _ => Map::load(layer.file(), named)
                .map_err(|source| failed("read layer", source))?
                .map_err(|problem| refused(format!("{} {problem}: {}", layer.name(), base.name())))?,
        };
        let scratch = vec![0; CLUSTER as usize].into();
        Ok(Self { base, layer, cache, len, map, scratch })
    }

    /// How many of `len` bytes from `at` on lie in the same file, and whether that is the layer.
    fn run(&self, at: u64, len: u64) -> (u64, bool) {
        let there = self.map.has(at / CLUSTER);
        let mut end = (at / CLUSTER + 1) * CLUSTER;
        while end < at + len && self.map.has(end / CLUSTER) == there {
            end += CLUSTER;
        }
        (len.min(end - at), there)
    }

    /// Lets `put` write a stretch to the layer, with the clusters it lies in.
    fn put(
        &mut self,
        at: u64,
        len: u64,
        put: impl FnOnce(&HostFile, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        let end = at + len;
        let (first, last) = (at / CLUSTER, (end - 1) / CLUSTER);
        if !self.map.has(first) {
            self.copy_up(first * CLUSTER, at)?;
        }
        if !self.map.has(last) {
            self.copy_up(end, self.len.min((last + 1) * CLUSTER))?;
        }
        put(&self.layer, self.map.data() + at)?;
        // Only now: a cluster that could not be written in full is still the base's.
        (first..=last).for_each(|cluster| self.map.add(cluster));
        Ok(())
    }

    /// Copies a part of a cluster from the base.
    fn copy_up(&mut self, from: u64, to: u64) -> io::Result<()> {
        let bytes = &mut self.scratch[..to.saturating_sub(from) as usize];
        self.base.file().read_exact_at(bytes, from)?;
        self.layer.file().write_all_at(bytes, self.map.data() + from)
    }
}

impl Storage for Overlay {
    fn len(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read(&mut self, mut at: u64, mut into: Buffers<'_>) -> io::Result<()> {
        while !into.is_empty() {
            let (len, in_layer) = self.run(at, into.len() as u64);
            let part = into.take(len as usize);
            match in_layer {
                true => self.layer.read(self.map.data() + at, &part)?,
                false => self.base.read(at, &part)?,
            }
            at += len;
        }
        Ok(())
    }

    fn write(&mut self, at: u64, from: Buffers<'_>) -> io::Result<()> {
        self.put(at, from.len() as u64, |layer, at| layer.write(at, &from))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.layer.file().sync_data()?;
        if !self.map.is_written() {
            self.map.write(self.layer.file())?;
            self.layer.file().sync_data()?;
            self.map.written();
        }
        Ok(())
    }

    /// Zeros are holes: a layer promises no place to anyone. There may be something from before a crash even where the map says
    /// there is nothing.
    fn write_zeroes(&mut self, Stretch { at, len, unmap: _ }: Stretch) -> io::Result<()> {
        self.put(at, len, |layer, at| layer.write_zeroes(Stretch { at, len, unmap: true }))
    }

    fn settle(&mut self) -> io::Result<()> {
        if self.map.is_written() {
            return Ok(());
        }
        if self.cache == Cache::Writeback {
            self.layer.file().sync_data()?;
        }
        self.map.write(self.layer.file())?;
        self.map.written();
        Ok(())
    }

    fn is_settled(&self) -> bool {
        self.map.is_written()
    }

    fn layer(&self) -> Option<&File> {
        Some(self.layer.file())
    }
}

#[cfg(test)]
#[path = "layer_tests.rs"]
mod tests;
