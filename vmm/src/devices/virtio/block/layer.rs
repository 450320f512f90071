//! A disk of several files: what lies below is only read and may be shared by any number of VMs, and a layer over it has what
//! this VM wrote. What is in the layer, by clusters of 64 KiB, its map says.
//!
//! ```text
//!   read     ──> the layer where it has the cluster, else what lies below
//!   write    ──> the layer, after what the write leaves of its first and last cluster was copied there from below
//!   flush    ──> fdatasync, then the map, then fdatasync: the file's map never speaks of data that is not safe
//!   capture  ──> one layer over the base, with what there is in the layer below and in this one
//! ```

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::file::{Direction, HostFile, Use};
use super::lower::{Lower, open_layer};
use super::map::{CLUSTER, Map};
use super::request::Stretch;
use super::storage::{Place, Storage};
use crate::config::FileRef;
use crate::config::devices::Cache;
use crate::devices::virtio::chain::Buffers;
use crate::error::{Error, Result};
use crate::sparse;

/// A layer, and what it lies over.
#[derive(Debug)]
pub struct Overlay {
    lower: Lower,
    layer: HostFile,
    /// What is to be safe after a flush.
    cache: Cache,
    map: Map,
    /// It was made when it was opened, and the guest's writes are all there is in it.
    was_empty: bool,
    /// For a part of a cluster on its way up. Empty before the first: to touch it costs a restore as much as all else here.
    scratch: Vec<u8>,
}

impl Overlay {
    /// Opens a layer; an empty or missing file becomes an empty layer unless it is only read.
    ///
    /// # Errors
    /// Those of [`HostFile::open`]; the layer is none, or lies over something else.
    pub fn open(id: &str, lower: Lower, layer: &FileRef, wanted: Use, cache: Cache) -> Result<Self> {
        let layer = open_layer(id, layer, wanted)?;
        let len = layer.len().map_err(|source| Error::file("read layer", layer.name(), source))?;
        let was_empty = wanted == Use::Make && len == 0;
        let map = match was_empty {
            true => Map::make(layer.file(), lower.named())
                .map_err(|source| Error::file("make layer", layer.name(), source))?,
            false => lower.map_of(id, &layer)?,
        };
        Ok(Self { lower, layer, cache, map, was_empty, scratch: Vec::new() })
    }

    /// Whether there was nothing in the layer when it was opened.
    pub fn was_empty(&self) -> bool {
        self.was_empty
    }

    /// How many of `len` bytes from `at` on lie in the same file, and whether that is the layer.
    fn run(&self, at: u64, len: u64) -> (u64, bool) {
        let first = at / CLUSTER;
        let there = self.map.has(first);
        let mut end = (first + 1) * CLUSTER;
        while end < at + len
            && self.map.has(end / CLUSTER) == there
            && (there || self.lower.is_together(first, end / CLUSTER))
        {
            end += CLUSTER;
        }
        (len.min(end - at), there)
    }

    /// Makes an empty file a layer over the base that has all that this disk has. The device does not work.
    ///
    /// # Errors
    /// The host refuses.
    pub fn capture(&self, to: &File) -> io::Result<()> {
        let Some((below, map)) = self.lower.layer() else {
            sparse::whole(self.layer.file(), to)?;
            return self.map.clone().renew(to);
        };
        sparse::whole(below.file(), to)?;
        let mut all = map.clone();
        let mut at = 0;
        while at < self.lower.len() {
            let (len, there) = self.run(at, self.lower.len() - at);
            if there {
                let clusters = at / CLUSTER..(at + len).div_ceil(CLUSTER);
                let stretch = clusters.start * CLUSTER..clusters.end * CLUSTER;
                sparse::stretch(
                    self.layer.file(),
                    to,
                    self.map.data() + stretch.start..self.map.data() + stretch.end,
                )?;
                clusters.for_each(|cluster| all.add(cluster));
            }
            at += len;
        }
        all.write(to)?;
        all.renew(to)
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
            self.copy_up(end, self.lower.len().min((last + 1) * CLUSTER))?;
        }
        put(&self.layer, self.map.data() + at)?;
        // Only now: a cluster that could not be written in full is still that below.
        (first..=last).for_each(|cluster| self.map.add(cluster));
        Ok(())
    }

    /// Copies a part of a cluster from below.
    fn copy_up(&mut self, from: u64, to: u64) -> io::Result<()> {
        self.scratch.resize(CLUSTER as usize, 0);
        let bytes = &mut self.scratch[..to.saturating_sub(from) as usize];
        self.lower.read_exact(from, bytes)?;
        self.layer.file().write_all_at(bytes, self.map.data() + from)
    }
}

impl Storage for Overlay {
    fn len(&self) -> io::Result<u64> {
        Ok(self.lower.len())
    }

    fn read(&mut self, mut at: u64, mut into: Buffers<'_>) -> io::Result<()> {
        while !into.is_empty() {
            let (len, in_layer) = self.run(at, into.len() as u64);
            let part = into.take(len as usize);
            match in_layer {
                true => self.layer.read(self.map.data() + at, &part)?,
                false => self.lower.read(at, &part)?,
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

    fn empty(&mut self) -> io::Result<()> {
        self.layer.file().set_len(0)?;
        self.map = Map::make(self.layer.file(), self.lower.named())?;
        Ok(())
    }

    fn files(&self) -> Vec<&HostFile> {
        self.lower.files().chain([&self.layer]).collect()
    }

    /// Nothing is to be done for a write but to write where its clusters are in the layer. A flush writes the map too.
    fn place(&self, direction: Option<Direction>, at: u64, len: u64) -> Option<Place> {
        let direction = direction?;
        let (run, there) = self.run(at, len);
        let data = self.map.data();
        match (there, direction) {
            _ if run < len => None,
            (false, Direction::Read) => Some(self.lower.place(at)),
            (false, Direction::Write) => None,
            (true, Direction::Write) if self.layer.check_reaches(data + at + len).is_err() => None,
            (true, _) => Some(Place { file: self.lower.files().count(), at: data + at }),
        }
    }

    fn overlay(&self) -> Option<&Overlay> {
        Some(self)
    }
}

#[cfg(test)]
#[path = "layer_tests.rs"]
mod tests;
