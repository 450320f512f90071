//! Reads, writes, zeros, discards and flushes of a disk with a layer: [`Storage`] for [`Overlay`].

use std::io;

use super::Overlay;
use crate::devices::virtio::block::cluster_map::{CLUSTER, ClusterMap};
use crate::devices::virtio::block::host_file::HostFile;
use crate::devices::virtio::block::quota::LayerQuota;
use crate::devices::virtio::block::request::DiskRange;
use crate::devices::virtio::block::storage::{FileOffset, PendingFlush, Storage};
use crate::devices::virtio::chain::Buffers;

impl Storage for Overlay {
    fn len(&self) -> io::Result<u64> {
        Ok(self.lower.len())
    }

    fn read(&mut self, mut at: u64, mut into: Buffers<'_>) -> io::Result<()> {
        while !into.is_empty() {
            let (len, in_layer) = self.same_file_len(at, into.len() as u64);
            let piece = into.take(len as usize);
            match in_layer {
                true => self.layer.read(self.map.data() + at, &piece)?,
                false => self.lower.read(at, piece)?,
            }
            at += len;
        }
        Ok(())
    }

    fn write(&mut self, at: u64, from: Buffers<'_>) -> io::Result<()> {
        self.reserve_quota(at, from.len() as u64)?;
        self.write_clusters(at, from.len() as u64, |layer, at| layer.write(at, &from))
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.has_name {
            return Ok(());
        }
        // The map first: it promises nothing about the files around the layer, which may fail to sync.
        self.write_map()?;
        self.sync_surroundings()
    }

    /// Writes zeros as holes, because a layer reserves no space. A hole is needed even if the map does not
    /// have the cluster: a crash may have left data there.
    fn write_zeroes(&mut self, DiskRange { at, len, unmap: _ }: DiskRange) -> io::Result<()> {
        let whole = self.whole_clusters(at, len);
        if let Some(mut quota) = self.quota.take() {
            let has_holes = quota.has_holes();
            let takes_space = |cluster: &u64| !has_holes || self.is_copied_up(*cluster, &whole);
            let clusters = (at / CLUSTER..(at + len).div_ceil(CLUSTER)).filter(takes_space);
            let reserved = quota.take(clusters);
            self.quota = Some(quota);
            reserved?;
        }
        self.write_clusters(at, len, |layer, at| layer.write_zeroes(DiskRange { at, len, unmap: true }))?;
        let quota = self.quota.iter_mut().filter(|quota| quota.has_holes());
        quota.for_each(|quota| quota.release(whole.clone()));
        Ok(())
    }

    /// Takes no space: parts of clusters that the layer does not have keep their bytes. Does nothing on a
    /// file system without holes, which would have to write as many zeros as a guest asks for.
    fn discard(&mut self, DiskRange { at, len, unmap }: DiskRange) -> io::Result<()> {
        if len == 0 || !self.has_holes()? {
            return Ok(());
        }
        let (whole, end) = (self.whole_clusters(at, len), at + len);
        let (first, last) = (at / CLUSTER, (end - 1) / CLUSTER);
        let at = if self.is_copied_up(first, &whole) { (first + 1) * CLUSTER } else { at };
        let end = if self.is_copied_up(last, &whole) { last * CLUSTER } else { end };
        match end.checked_sub(at) {
            Some(len) if len > 0 => self.write_zeroes(DiskRange { at, len, unmap }),
            _ => Ok(()),
        }
    }

    fn forget_len(&self) {
        self.layer.forget_len();
    }

    fn settle(&mut self) -> io::Result<()> {
        if self.map.is_dirty() || !self.blocks_to_write.is_empty() { self.flush() } else { Ok(()) }
    }

    fn empty(&mut self) -> io::Result<()> {
        // If this fails midway, bits of the old map must never follow the new header: they would stand for
        // zeros.
        self.layer.syncs().refuse();
        let _ = self.map.take_dirty();
        self.blocks_to_write.clear();
        self.layer.file().set_len(0)?;
        self.map = ClusterMap::make(self.layer.file(), self.lower.identity(), self.has_name)?;
        self.quota.iter_mut().for_each(LayerQuota::clear);
        self.layer.syncs().forget_failures();
        Ok(())
    }

    fn files(&self) -> Vec<&HostFile> {
        self.lower.files().chain([&self.layer]).collect()
    }

    /// Lower layers are copied into a snapshot. A sync of this one shows whether the host lost some of it
    /// before.
    fn files_to_sync(&self) -> Vec<&HostFile> {
        self.lower.base().iter().chain(self.has_name.then_some(&self.layer)).collect()
    }

    fn locate(&self, at: u64, len: u64) -> Option<FileOffset> {
        match self.same_file_len(at, len) {
            (run, _) if run < len => None,
            (_, false) => self.lower.locate(at, len),
            (_, true) => Some(FileOffset { file: self.layer_number(), at: self.map.data() + at }),
        }
    }

    /// The layer has the new clusters once the write has ended. Until then reads find the lower files.
    fn begin_write(&mut self, at: u64, len: u64) -> io::Result<Option<FileOffset>> {
        let end = self.map.data() + at + len;
        if len == 0 || self.layer.check_len(end).is_err() {
            return Ok(None);
        }
        let (first, last) = (at / CLUSTER, (at + len - 1) / CLUSTER);
        self.reserve_quota(at, len)?;
        self.copy_up_around(at, len)?;
        self.write_log.add(at, len);
        self.pending_clusters.extend((first..=last).filter(|cluster| !self.map.has(*cluster)));
        Ok(Some(FileOffset { file: self.layer_number(), at: self.map.data() + at }))
    }

    fn end_write(&mut self, at: u64, len: u64, done: io::Result<()>) -> io::Result<()> {
        let (first, last) = (at / CLUSTER, (at + len - 1) / CLUSTER);
        match (first..=last).filter(|cluster| self.pending_clusters.remove(cluster)).count() {
            0 => done,
            _ => done.and_then(|()| self.map.add(self.layer.file(), first..=last)),
        }
    }

    fn is_pending(&self, at: u64, len: u64) -> bool {
        len > 0 && self.pending_clusters.range(at / CLUSTER..=(at + len - 1) / CLUSTER).next().is_some()
    }

    fn abandon(&mut self) {
        self.pending_clusters.clear();
    }

    fn begin_flush(&mut self) -> io::Result<Option<PendingFlush>> {
        if !self.has_name {
            return Ok(None);
        }
        self.sync_surroundings()?;
        let sync = self.layer.begin_sync()?;
        self.take_blocks();
        Ok(Some(PendingFlush { file: self.layer_number(), sync, is_map_written: false }))
    }

    fn sync_done(&mut self, flush: &mut PendingFlush, done: io::Result<()>) -> io::Result<bool> {
        flush.sync.end(done)?;
        if flush.is_map_written || !self.write_blocks()? {
            return Ok(false);
        }
        flush.is_map_written = true;
        flush.sync = self.layer.begin_sync()?;
        Ok(true)
    }
}
