//! The writable layers of disks in a snapshot, as they were in the pause of the capture. A guest never finds
//! a disk older or newer than its memory. Layers are copied in the same passes as memory, while the guest
//! runs. Each restored VM gets a fresh layer over the snapshot's, which is only read from then on, so a
//! restore copies nothing.
//!
//! The state identifies each layer by the digest of its map, so another snapshot's layer over the same base
//! is refused. The clusters' data has no digest: computing one would have to read data that a copy shares
//! with the layer by reflink.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustix::fs::{FileType, OFlags};

use crate::config::{CheckedFile, Devices, FileRef};
use crate::devices::virtio::block::Block;
use crate::devices::virtio::block::cluster_map::{CLUSTER, ClusterMap};
use crate::devices::virtio::block::copy::{LayerCopy, failed};
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::machine::shared::SharedMachine;
use crate::memory::PAGE;
use crate::memory::files::sparse;
use crate::paths;
use crate::progress::Progress;
use crate::run_control::RunState;
use crate::snapshot::format::digest;
use crate::store::dir::NewDir;
use crate::sync::lock;

fn name_of(id: &str) -> String {
    format!("disk-{id}.layer")
}

/// Copies of a running VM's layers. Dropping them stops noting the VM's writes for them.
#[derive(Debug, Default)]
pub struct LayerCopies(Vec<LayerBeingCopied>);

#[derive(Debug)]
struct LayerBeingCopied {
    id: String,
    /// Name of the copy in its directory.
    name: String,
    disk: Arc<Mutex<Block>>,
    copy: LayerCopy,
}

/// A completed copy.
#[derive(Debug)]
pub struct FinishedLayer {
    /// Id of the disk.
    pub id: String,
    /// Name of the file.
    pub name: String,
    /// The file, not synced yet.
    pub file: File,
    /// The digest for [`Metadata::layers`](crate::snapshot::Metadata::layers).
    pub digest: String,
}

/// Digests of layers, by disk id.
pub fn digests(layers: &[FinishedLayer]) -> BTreeMap<String, String> {
    layers.iter().map(|layer| (layer.id.clone(), layer.digest.clone())).collect()
}

impl LayerCopies {
    /// Begins copies into `dir`.
    ///
    /// # Errors
    /// The host refuses.
    pub(crate) fn into_directory(vm: &SharedMachine, dir: &NewDir) -> Result<Self> {
        Self::begin(vm, |id| Ok((name_of(id), dir.create(&name_of(id))?)))
    }

    /// Begins copies into files without a name. The disks' ids identify them.
    ///
    /// # Errors
    /// The host refuses.
    pub(crate) fn without_names(vm: &SharedMachine) -> Result<Self> {
        Self::begin(vm, |id| Ok((id.to_owned(), nameless(&paths::temporary_directory())?)))
    }

    fn begin(vm: &SharedMachine, make: impl Fn(&str) -> Result<(String, File)>) -> Result<Self> {
        let mut copies = Self::default();
        for (id, disk) in vm.on_platform(|platform| platform.disks().clone()) {
            let begun = lock(&disk).begin_copy()?;
            let Some(source) = begun else { continue };
            let made = make(&id).and_then(|(name, to)| Ok((name, LayerCopy::begin(source, to)?)));
            let (name, copy) = made.inspect_err(|_| lock(&disk).end_copy())?;
            copies.0.push(LayerBeingCopied { id, name, disk, copy });
        }
        Ok(copies)
    }

    /// The most bytes of disk that the copies take, without later writes.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|one| one.copy.bytes()).sum()
    }

    /// Bytes copied so far.
    pub fn copied(&self) -> u64 {
        self.0.iter().map(|one| one.copy.copied()).sum()
    }

    /// Copies the bulk of all layers. `progress` counts [`LayerCopies::bytes`].
    ///
    /// # Errors
    /// The host refuses to read or to write one, or [`Error::Cancelled`].
    pub fn copy_bulk(&mut self, progress: &Progress) -> Result<()> {
        // A layer may have grown since its copy began, and a file system may share its blocks after all.
        let uncounted = Cell::new(self.bytes());
        progress.expect(uncounted.get());
        let goes_on = |bytes: u64| {
            let counted = bytes.min(uncounted.get());
            uncounted.set(uncounted.get() - counted);
            progress.add(counted).is_ok()
        };
        for LayerBeingCopied { id, copy, .. } in &mut self.0 {
            if !copy.copy_bulk(&goes_on).map_err(failed(id))? {
                return Err(Error::Cancelled);
            }
        }
        progress.add(uncounted.get())
    }

    /// Collects the writes since the last call. Returns the amount left to copy, in pages.
    pub fn look(&mut self) -> u64 {
        self.0.iter_mut().for_each(|LayerBeingCopied { disk, copy, .. }| copy.add(lock(disk).take_written()));
        self.left()
    }

    /// Bytes of copies in memory.
    pub fn held(&self) -> u64 {
        self.0.iter().map(|one| one.copy.buffered()).sum()
    }

    /// Bytes to reserve for the writes found last. They count as reserved from now on.
    ///
    /// # Errors
    /// As [`LayerCopies::copy_bulk`].
    pub fn place_left(&mut self) -> Result<u64> {
        self.0
            .iter_mut()
            .map(|LayerBeingCopied { id, copy, .. }| copy.reserve_remaining().map_err(failed(id)))
            .sum()
    }

    /// Copies the rest, as [`LayerCopy::pass`]. Stops when `goes_on` returns false for the number of pages
    /// left. Returns whether everything was copied.
    ///
    /// # Errors
    /// As [`LayerCopies::copy_bulk`].
    pub fn pass(
        &mut self,
        guest: RunState,
        about_to_write: &dyn Fn(u64),
        goes_on: &dyn Fn(u64) -> bool,
    ) -> Result<bool> {
        let mut others = self.left();
        for LayerBeingCopied { id, copy, .. } in &mut self.0 {
            others -= pages(copy.remaining());
            let all = copy.pass(guest, about_to_write, |left| goes_on(others + pages(left)));
            if !all.map_err(failed(id))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Moves copies in memory into the files, as [`LayerCopy::finish`]. The caller syncs them.
    ///
    /// # Errors
    /// As [`LayerCopies::copy_bulk`]; or a sync of a layer failed.
    pub fn finish(mut self, about_to_write: &dyn Fn(u64)) -> Result<Vec<FinishedLayer>> {
        let copies = std::mem::take(&mut self.0);
        copies.iter().for_each(|one| lock(&one.disk).end_copy());
        copies.iter().try_for_each(|one| lock(&one.disk).check_copy())?;
        copies
            .into_iter()
            .map(|LayerBeingCopied { id, name, copy, .. }| {
                let (file, digest) = copy.finish(about_to_write).map_err(failed(&id))?;
                Ok(FinishedLayer { id, name, file, digest: digest::format(digest) })
            })
            .collect()
    }

    fn left(&self) -> u64 {
        self.0.iter().map(|one| pages(one.copy.remaining())).sum()
    }
}

impl Drop for LayerCopies {
    fn drop(&mut self) {
        self.0.iter().for_each(|one| lock(&one.disk).end_copy());
    }
}

fn pages(clusters: u64) -> u64 {
    clusters * (CLUSTER / PAGE)
}

/// The layers that restored VMs lie over.
#[derive(Debug)]
pub enum LayerFiles {
    /// Files in the snapshot's directory.
    Directory(PathBuf),
    /// Open files, by disk id.
    Held(BTreeMap<String, File>),
}

impl LayerFiles {
    /// Opens the layers of a VM with these devices, by disk id, and checks that they have the digests
    /// `named`. Returns each with its digest.
    ///
    /// # Errors
    /// One is missing, no regular file, no layer, or another layer.
    pub fn open(
        &self,
        devices: &Devices,
        named: &BTreeMap<String, String>,
    ) -> Result<BTreeMap<String, (File, String)>> {
        let layered = devices.disks.iter().filter(|disk| disk.layer.is_some());
        let open = |id: &str| -> Result<(File, String)> {
            let found = self.find(id)?;
            let place = PathBuf::from(found.to_string());
            let file = found.open("open layer")?;
            let map = ClusterMap::load_any(&file)
                .map_err(|source| Error::file("read layer", place.display(), source))?;
            let map = map.map_err(|problem| Error::snapshot(&place, problem))?;
            let digest = map.identity().digest;
            check_digest(&place, named.get(id), digest)?;
            Ok((file, digest::format(digest)))
        };
        layered.map(|disk| Ok((disk.id.clone(), open(&disk.id)?))).collect()
    }

    /// Copies the layers of a VM with these devices into a snapshot at `to`, if they have the digests
    /// `named`. Returns their digests. `progress` counts the layers' data.
    ///
    /// # Errors
    /// As [`LayerFiles::open`]; or the host refuses to write one; or [`Error::Cancelled`].
    pub fn carry(
        &self,
        devices: &Devices,
        named: &BTreeMap<String, String>,
        to: &NewDir,
        progress: &Progress,
    ) -> Result<BTreeMap<String, String>> {
        let carry = |((id, (layer, digest)), len): ((String, (File, String)), u64)| {
            let name = name_of(&id);
            let failed = |source| to.failed_to_write(&name, source);
            let copy = to.create(&name)?;
            let copied = sparse::whole_while(&layer, &copy, |bytes| progress.add(bytes).is_ok());
            // Shared blocks count, too.
            progress.add(len.saturating_sub(copied.map_err(failed)?))?;
            copy.sync_all().map_err(failed)?;
            Ok((id, digest))
        };
        let layers = self.open(devices, named)?;
        let len_of = |(id, (layer, _)): (&String, &(File, String))| {
            let failed = |source| Error::file("read layer of disk", id, source);
            let len = layer.metadata().and_then(|metadata| sparse::data_len(layer, 0..metadata.len()));
            len.map_err(failed)
        };
        let lens = layers.iter().map(len_of).collect::<Result<Vec<_>>>()?;
        progress.expect(lens.iter().sum());
        layers.into_iter().zip(lens).map(carry).collect()
    }

    /// Checks that a restored machine's disks lie over layers with the digests `named`. The machine has them
    /// open.
    ///
    /// # Errors
    /// One lies over another layer.
    pub fn check(&self, named: &BTreeMap<String, String>, machine: &Machine) -> Result<()> {
        for (id, named) in named {
            let disk = machine.platform().disks().get(id);
            let found = disk.and_then(|disk| lock(disk).digest_of_frozen_layer());
            if let Some(found) = found.filter(|found| *found != digest::parse(named)) {
                check_digest(Path::new(&self.find(id)?.to_string()), Some(named), found)?;
            }
        }
        Ok(())
    }

    /// Opens the layer of a disk.
    ///
    /// # Errors
    /// The snapshot lacks it.
    pub fn find(&self, id: &str) -> Result<FileRef> {
        match self {
            Self::Directory(snapshot) => {
                let path = snapshot.join(name_of(id));
                let found = paths::open(&path, OFlags::PATH | OFlags::NOFOLLOW, 0);
                let found = found.map_err(|_| Error::snapshot(&path, "is missing"))?;
                let stat = rustix::fs::fstat(&found)
                    .map_err(|source| Error::file("look at", path.display(), source))?;
                match FileType::from_raw_mode(stat.st_mode) {
                    FileType::RegularFile => Ok(FileRef::Checked(CheckedFile::new(path, found.into()))),
                    _ => Err(Error::snapshot(&path, "is not a regular file")),
                }
            }
            Self::Held(layers) => {
                layers.get(id).map(|layer| FileRef::Fd(layer.as_raw_fd())).ok_or_else(|| {
                    Error::config("disks", format!("{id}: the snapshot has no layer of this disk"))
                })
            }
        }
    }
}

fn check_digest(place: &Path, named: Option<&String>, found: u64) -> Result<()> {
    let Some(named) = named.filter(|named| digest::parse(named) != found) else { return Ok(()) };
    let problem = format!(
        "is not the layer of this snapshot: its map has the digest {}, and state.json names {named}; \
         put back the layer that was written with state.json",
        digest::format(found)
    );
    Err(Error::snapshot(place, problem))
}

/// Fresh layers of a VM that may still fail to start. Dropping them before [`FreshLayers::keep`] removes
/// those that were made at a path.
#[derive(Debug, Default)]
pub struct FreshLayers {
    /// Open descriptors that the configuration refers to by number.
    unnamed: Vec<File>,
    made: Vec<PathBuf>,
}

impl FreshLayers {
    /// Closes the descriptors of files without a name, once the disks have these files open.
    pub fn close_unnamed(&mut self) {
        self.unnamed.clear();
    }

    /// Keeps the files.
    pub fn keep(mut self) {
        self.made.clear();
    }
}

impl Drop for FreshLayers {
    fn drop(&mut self) {
        for path in &self.made {
            let _ = paths::remove_file(path); // the error that led here is the one to tell
        }
    }
}

/// Gives each disk of `devices` that has a layer a fresh layer over the snapshot's. It lies at its configured
/// path if `placed` has the disk's id, otherwise in a file without a name that ends with the VM. The layers
/// of a fork have no names and end with its VMs too. A path given for a child's layer therefore gets a copy:
/// a layer over a nameless one could not be opened later. `progress` counts the bytes of such a
/// copy.
///
/// # Errors
/// The snapshot lacks a layer, the file for a fresh one exists, or the host refuses; or
/// [`Error::Cancelled`].
pub fn create_restore_layers(
    from: &LayerFiles,
    devices: &mut Devices,
    placed: &BTreeSet<String>,
    progress: &Progress,
) -> Result<FreshLayers> {
    let mut fresh = FreshLayers::default();
    for disk in &mut devices.disks {
        let Some(layer) = &mut disk.layer else { continue };
        let found = from.find(&disk.id)?;
        if disk.read_only {
            (*layer, disk.beneath) = (found, None);
            continue;
        }
        let kept = match (placed.contains(&disk.id), &*layer, from) {
            (true, FileRef::Path(place), _) => {
                let made = create(place)?;
                fresh.made.push(place.clone());
                Some(made)
            }
            (true, given, LayerFiles::Held(_)) => Some(given.open_writable("open layer", false)?),
            (true, _, LayerFiles::Directory(_)) => None,
            (false, ..) => {
                let file = nameless(&paths::temporary_directory())?;
                *layer = FileRef::Fd(file.as_raw_fd());
                fresh.unnamed.push(file);
                None
            }
        };
        disk.beneath = match (from, kept) {
            (LayerFiles::Held(_), Some(kept)) => {
                let copied = copy_layer(&found, &kept, progress);
                progress.check()?;
                copied.map_err(|source| Error::file("copy layer to", layer.to_string(), source))?;
                None
            }
            _ => Some(found),
        };
    }
    Ok(fresh)
}

/// Copies a layer into an empty file, with a fresh id, and syncs the copy unless it has no name: a crash
/// removes such a file.
fn copy_layer(from: &FileRef, to: &File, progress: &Progress) -> io::Result<()> {
    let found = to.metadata()?;
    if found.len() > 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the file is not empty"));
    }
    let has_name = found.nlink() > 0;
    copy_in_steps(from, to, progress, || if has_name { to.sync_data() } else { Ok(()) })
}

/// Copies a layer, with a sync after each step. After a power cut the file is a complete copy, or an
/// incomplete one that becomes an empty layer when a VM opens it.
fn copy_in_steps(
    from: &FileRef,
    to: &File,
    progress: &Progress,
    sync: impl Fn() -> io::Result<()>,
) -> io::Result<()> {
    let invalid = |problem: String| io::Error::new(io::ErrorKind::InvalidData, problem);
    let from = from.open("open layer").map_err(io::Error::other)?;
    let mut map = ClusterMap::load_any(&from)?.map_err(invalid)?;
    map.begin_copy(to)?;
    let data = map.data()..map.end();
    progress.expect(sparse::data_len(&from, data.clone())?);
    // Shares blocks where the file system can.
    sparse::data_while(&from, to, data, |bytes| progress.add(bytes).is_ok())?;
    progress.check().map_err(io::Error::other)?;
    sync()?;
    map.write_bits(to)?;
    sync()?;
    map.renew(to)?;
    sync()
}

fn create(place: &Path) -> Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    paths::open(place, flags, 0o600).map_err(|source| Error::file("create layer", place.display(), source))
}

fn nameless(place: &Path) -> Result<File> {
    paths::open(place, OFlags::TMPFILE | OFlags::RDWR, 0o600)
        .map_err(|source| Error::file("create a layer in", place.display(), source))
}

#[cfg(test)]
#[path = "layers_tests.rs"]
mod tests;
