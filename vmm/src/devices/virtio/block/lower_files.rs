//! The files that a layer lies over: a base, or in a clone a base and the layer of its snapshot. The base may
//! have several parts. The files are only read, and may be shared by any number of VMs.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use super::cluster_map::{BaseIdentity, CLUSTER, ClusterMap, LONGEST_BASE};
use super::host_file::{HostFile, OpenMode};
use super::image_files::ImageFiles;
use super::request::SECTOR;
use super::storage::FileOffset;
use crate::config::FileRef;
use crate::devices::virtio::chain::Buffers;
use crate::error::{Error, Invalid, Result, report};

/// The base, and the layer over it if there is one.
#[derive(Debug)]
pub struct LowerFiles {
    base: ImageFiles,
    layer: Option<(HostFile, ClusterMap)>,
    /// The identity that the upper layer records.
    identity: BaseIdentity,
}

impl LowerFiles {
    /// Takes an open base, and opens the layer over it if there is one. `wanted` is the use of the upper
    /// layer. Before an upper layer is written, the clusters that count in this boot only are added to the
    /// synced map, because the upper layer's identity covers them.
    ///
    /// # Errors
    /// Those of [`HostFile::open`]; the file is not a layer, belongs to another base, or cannot be written
    /// although its synced map lacks clusters.
    pub fn open(id: &str, base: ImageFiles, layer: Option<&FileRef>, wanted: OpenMode) -> Result<Self> {
        let unreadable = |source| Error::file("read disk", base.name(), source);
        let len = base.len().map_err(unreadable)?;
        if !(SECTOR..=LONGEST_BASE).contains(&len) {
            let name = base.name();
            let problem =
                format!("{id}: {name} has {len} bytes; the base of a layer has {SECTOR} to {LONGEST_BASE}");
            return Err(Error::config("disks", problem));
        }
        let digest = base.digest(len).map_err(unreadable)?;
        let mut lower = Self { base, layer: None, identity: BaseIdentity { len, digest } };
        if let Some(layer_ref) = layer {
            let layer = open_layer(id, layer_ref, OpenMode::Read)?;
            let mut map = lower.map_of(id, &layer)?;
            if wanted != OpenMode::Read && map.is_dirty() {
                complete_synced_map(layer_ref, &layer, &mut map).map_err(|error| {
                    let (disk, layer, problem) =
                        (id.to_owned(), layer.name().to_string(), report(&error).into());
                    Error::config("disks", Invalid::IncompleteLayer { disk, layer, problem })
                })?;
            }
            map.begin_reading();
            lower.identity = map.identity();
            lower.layer = Some((layer, map));
        }
        Ok(lower)
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.identity.len
    }

    /// Returns the identity that a layer over these files records.
    pub fn identity(&self) -> BaseIdentity {
        self.identity
    }

    /// Reads the map of a layer over these files.
    ///
    /// # Errors
    /// The file is not a layer, or lies over other files.
    pub fn map_of(&self, id: &str, layer: &HostFile) -> Result<ClusterMap> {
        let found = ClusterMap::load(layer.file(), self.identity);
        let found = found.map_err(|source| Error::file("read layer", layer.name(), source))?;
        found.map_err(|problem| {
            Error::config("disks", format!("{id}: {} {problem} (base: {})", layer.name(), self.base.name()))
        })
    }

    /// Returns the layer's file and map.
    pub fn layer(&self) -> Option<(&HostFile, &ClusterMap)> {
        self.layer.as_ref().map(|(file, map)| (file, map))
    }

    /// Reads a range that lies in the layer or in the base into guest memory.
    pub fn read(&self, at: u64, into: Buffers<'_>) -> io::Result<()> {
        match self.find_in_layer(at) {
            Some((layer, at)) => layer.read(at, &into),
            None => self.base.read(at, into),
        }
    }

    /// Reads a range that lies in the layer or in the base into the VMM's memory.
    pub fn read_exact(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        match self.find_in_layer(at) {
            Some((layer, at)) => layer.file().read_exact_at(into, at),
            None => self.base.read_exact(at, into),
        }
    }

    /// Returns whether two clusters lie both in the layer or both in the base.
    pub fn is_in_same_file(&self, one: u64, other: u64) -> bool {
        self.layer.as_ref().is_none_or(|(_, map)| map.has(one) == map.has(other))
    }

    /// Returns the files by the numbers of [`LowerFiles::locate`].
    pub fn files(&self) -> impl Iterator<Item = &HostFile> {
        self.base().iter().chain(self.layer.iter().map(|(file, _)| file))
    }

    /// Returns the files of the base.
    pub fn base(&self) -> &[HostFile] {
        self.base.files()
    }

    /// Syncs the files, which another process may have written just before they were opened.
    pub fn sync(&self) -> io::Result<()> {
        self.files().try_for_each(|file| file.sync(File::sync_data))
    }

    /// Returns where a range of the layer or of the base can be read, if it lies in one file.
    pub fn locate(&self, at: u64, len: u64) -> Option<FileOffset> {
        match self.find_in_layer(at) {
            Some((_, at)) => Some(FileOffset { file: self.base().len(), at }),
            None => self.base.locate(at, len),
        }
    }

    /// Returns the layer and a byte's offset there, if it has the byte.
    fn find_in_layer(&self, at: u64) -> Option<(&HostFile, u64)> {
        let (layer, map) = self.layer.as_ref()?;
        map.has(at / CLUSTER).then(|| (layer, map.data() + at))
    }
}

/// Adds all clusters of a layer, which is open for reading, to its synced map. No other process changes the
/// layer, except by doing the same.
fn complete_synced_map(layer_ref: &FileRef, layer: &HostFile, map: &mut ClusterMap) -> Result<()> {
    let failed = |source| Error::file("write layer", layer.name(), source);
    let writable = layer_ref.open_writable("write layer", false)?;
    let identity = |file: &File| file.metadata().map(|found| (found.dev(), found.ino()));
    if identity(&writable).map_err(failed)? != identity(layer.file()).map_err(failed)? {
        return Err(failed(io::Error::other("another file replaced it meanwhile")));
    }
    layer
        .sync(File::sync_data)
        .and_then(|()| map.take_dirty().write(&writable))
        .and_then(|()| layer.sync(File::sync_data))
        .map_err(failed)
}

/// Opens the file of a layer.
///
/// # Errors
/// Those of [`HostFile::open`]; the file is a block device.
pub fn open_layer(id: &str, layer: &FileRef, wanted: OpenMode) -> Result<HostFile> {
    let layer = HostFile::open(id, layer, wanted)?;
    match layer.is_block_device() {
        true => Err(Error::config("disks", format!("{id}: layer {} must be a regular file", layer.name()))),
        false => Ok(layer),
    }
}
