//! The writable layers of a VM's disks in its snapshot, as they were in the pause that the memory is from, so that a guest never
//! finds a disk older or newer than what it remembers. They are copied as memory is, in passes while the guest runs. Each VM that is restored gets a fresh layer of its own over the snapshot's,
//! which is only read from then on: nothing is copied at a restore.
//!
//! The state names each layer by the digest of its map, so that another snapshot's layer over the same base
//! is refused. The data of the clusters has no digest: it would have to be read for that, where a copy shares
//! its blocks with the layer.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustix::fs::{FileType, Mode, OFlags};

use crate::config::{CheckedFile, Devices, FileRef};
use crate::devices::virtio::block::Block;
use crate::devices::virtio::block::cluster_map::{CLUSTER, ClusterMap};
use crate::devices::virtio::block::copy::{LayerCopy, failed};
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::machine::running::Running;
use crate::memory::PAGE;
use crate::memory::files::sparse;
use crate::run_control::RunState;
use crate::snapshot::format::digest;
use crate::store::dir::NewDir;
use crate::sync::lock;

fn name_of(id: &str) -> String {
    format!("disk-{id}.layer")
}

/// Copies of the layers of a VM's disks, made while it runs. Dropped, nothing is noted for them any more.
#[derive(Debug, Default)]
pub struct LayerCopies(Vec<LayerBeingCopied>);

#[derive(Debug)]
struct LayerBeingCopied {
    id: String,
    /// What the copy is called where it goes.
    name: String,
    disk: Arc<Mutex<Block>>,
    copy: LayerCopy,
}

/// A copy that is a layer by now.
#[derive(Debug)]
pub struct FinishedLayer {
    /// Of its disk.
    pub id: String,
    /// Of the file.
    pub name: String,
    /// To be synced.
    pub file: File,
    /// As [`Metadata::layers`](crate::snapshot::Metadata::layers) has it.
    pub digest: String,
}

/// What names them, by the ids of their disks.
pub fn digests(layers: &[FinishedLayer]) -> BTreeMap<String, String> {
    layers.iter().map(|layer| (layer.id.clone(), layer.digest.clone())).collect()
}

impl LayerCopies {
    /// Begins copies into `dir`.
    ///
    /// # Errors
    /// The host refuses.
    pub(crate) fn into_directory(vm: &Running, dir: &NewDir) -> Result<Self> {
        Self::begin(vm, |id| Ok((name_of(id), dir.create(&name_of(id))?)))
    }

    /// Begins copies into files without a name. They have the disks' ids.
    ///
    /// # Errors
    /// The host refuses.
    pub(crate) fn without_names(vm: &Running) -> Result<Self> {
        Self::begin(vm, |id| Ok((id.to_owned(), nameless(&std::env::temp_dir())?)))
    }

    fn begin(vm: &Running, make: impl Fn(&str) -> Result<(String, File)>) -> Result<Self> {
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

    /// Bytes that they take of the host, at most, beside what is written later.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|one| one.copy.bytes()).sum()
    }

    /// Bytes that were copied from layers so far.
    pub fn copied(&self) -> u64 {
        self.0.iter().map(|one| one.copy.copied()).sum()
    }

    /// Copies the bulk of all.
    ///
    /// # Errors
    /// The host refuses to read or to take one.
    pub fn copy_bulk(&mut self) -> Result<()> {
        self.0
            .iter_mut()
            .try_for_each(|LayerBeingCopied { id, copy, .. }| copy.copy_bulk().map_err(failed(id)))
    }

    /// Finds out what was written since the last time. Returns how many pages that and what was left before come to.
    pub fn look(&mut self) -> u64 {
        self.0.iter_mut().for_each(|LayerBeingCopied { disk, copy, .. }| copy.add(lock(disk).take_written()));
        self.left()
    }

    /// Bytes of copies that are held in memory.
    pub fn held(&self) -> u64 {
        self.0.iter().map(|one| one.copy.buffered()).sum()
    }

    /// Bytes to reserve for what the last look found. They count as reserved from now on.
    ///
    /// # Errors
    /// As [`LayerCopies::copy_bulk`].
    pub fn place_left(&mut self) -> Result<u64> {
        self.0
            .iter_mut()
            .map(|LayerBeingCopied { id, copy, .. }| copy.reserve_remaining().map_err(failed(id)))
            .sum()
    }

    /// Copies them as [`LayerCopy::pass`] does, while `goes_on` says so of the pages that are left. Returns
    /// whether none is.
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

    /// Brings what is in memory into the copies, as [`LayerCopy::finish`] does. They are to be synced.
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

/// Where the layers are that VMs are restored from.
#[derive(Debug)]
pub enum LayerFiles {
    /// In the snapshot's directory.
    Directory(PathBuf),
    /// Here, by the ids of their disks.
    Held(BTreeMap<String, File>),
}

impl LayerFiles {
    /// Opens those of a VM with these devices, by the ids of their disks, and checks that they are what
    /// `named` says. Returns with each what names it.
    ///
    /// # Errors
    /// One is missing, is no regular file or no layer, or is another one.
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

    /// Copies those of a VM with these devices into a snapshot at `to`, if they are what `named` says.
    /// Returns what names them.
    ///
    /// # Errors
    /// As [`LayerFiles::open`], and the host refuses.
    pub fn carry(
        &self,
        devices: &Devices,
        named: &BTreeMap<String, String>,
        to: &NewDir,
    ) -> Result<BTreeMap<String, String>> {
        let carry = |(id, (layer, digest)): (String, (File, String))| {
            let name = name_of(&id);
            let copy = to.create(&name)?;
            let copied = sparse::whole(&layer, &copy).and_then(|_| copy.sync_all());
            copied.map_err(|source| to.failed_to_write(&name, source))?;
            Ok((id, digest))
        };
        self.open(devices, named)?.into_iter().map(carry).collect()
    }

    /// Checks that a restored machine's disks lie over the layers that `named` says. The machine has them
    /// open.
    ///
    /// # Errors
    /// One is another one.
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

    /// The layer of a disk.
    ///
    /// # Errors
    /// There is none.
    pub fn find(&self, id: &str) -> Result<FileRef> {
        match self {
            Self::Directory(snapshot) => {
                let path = snapshot.join(name_of(id));
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let found = rustix::fs::open(&path, flags, Mode::empty());
                let found = found.map_err(|_| Error::snapshot(&path, "is missing"))?;
                let stat = rustix::fs::fstat(&found)
                    .map_err(|source| Error::file("look at", path.display(), source))?;
                match FileType::from_raw_mode(stat.st_mode) {
                    FileType::RegularFile => Ok(FileRef::Checked(CheckedFile::new(path, found))),
                    _ => Err(Error::snapshot(&path, "is not a regular file")),
                }
            }
            Self::Held(layers) => layers
                .get(id)
                .map(|layer| FileRef::Fd(layer.as_raw_fd()))
                .ok_or_else(|| Error::config("disks", format!("{id}: there is no layer of it"))),
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

/// Fresh layers, until their VM has them. Dropped before [`FreshLayers::keep`], those that were made at a place are removed again.
#[derive(Debug, Default)]
pub struct FreshLayers {
    /// The configuration refers to these by number.
    unnamed: Vec<File>,
    made: Vec<PathBuf>,
}

impl FreshLayers {
    /// The disks have them open.
    pub fn keep(mut self) {
        self.made.clear();
    }
}

impl Drop for FreshLayers {
    fn drop(&mut self) {
        for path in &self.made {
            let _ = std::fs::remove_file(path); // the error that led here is the one to tell
        }
    }
}

/// Gives each disk of `devices` that has a layer a fresh one over the snapshot's: at the place that is named
/// for it where `placed` has its id, otherwise in a file without a name that goes with the VM. A fork's layer
/// goes with its VMs, too: a place that is named for a child's layer gets a copy of it, because nobody could
/// open a layer over it later.
///
/// # Errors
/// A layer is missing in the snapshot, the file named for a fresh one is there already, or the host refuses.
pub fn create_restore_layers(
    from: &LayerFiles,
    devices: &mut Devices,
    placed: &BTreeSet<String>,
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
                let file = nameless(&std::env::temp_dir())?;
                *layer = FileRef::Fd(file.as_raw_fd());
                fresh.unnamed.push(file);
                None
            }
        };
        disk.beneath = match (from, kept) {
            (LayerFiles::Held(_), Some(kept)) => {
                copy_layer(&found, &kept)
                    .map_err(|source| Error::file("copy layer to", layer.to_string(), source))?;
                None
            }
            _ => Some(found),
        };
    }
    Ok(fresh)
}

/// Makes an empty file a copy of a layer, with an id of its own. It is on disk then, unless it has no name:
/// nobody can open such a file after a crash.
fn copy_layer(from: &FileRef, to: &File) -> io::Result<()> {
    let found = to.metadata()?;
    if found.len() > 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not empty"));
    }
    let has_name = found.nlink() > 0;
    copy_in_steps(from, to, || if has_name { to.sync_data() } else { Ok(()) })
}

/// Copies a layer, with a sync after each step. After a power cut the file is a whole copy, or an
/// unfinished one that becomes an empty layer.
fn copy_in_steps(from: &FileRef, to: &File, sync: impl Fn() -> io::Result<()>) -> io::Result<()> {
    let invalid = |problem: String| io::Error::new(io::ErrorKind::InvalidData, problem);
    let from = from.open("open layer").map_err(io::Error::other)?;
    let mut map = ClusterMap::load_any(&from)?.map_err(invalid)?;
    map.begin_copy(to)?;
    sparse::data(&from, to, map.data()..map.end())?; // shares blocks where the file system can
    sync()?;
    map.write_bits(to)?;
    sync()?;
    map.renew(to)?;
    sync()
}

fn create(place: &Path) -> Result<File> {
    let options = File::options().read(true).write(true).create_new(true).mode(0o600).open(place);
    options.map_err(|source| Error::file("create layer", place.display(), source))
}

fn nameless(place: &Path) -> Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open(place, flags, Mode::RUSR | Mode::WUSR)
        .map(File::from)
        .map_err(|source| Error::file("create a layer in", place.display(), source))
}

#[cfg(test)]
#[path = "layers_tests.rs"]
mod tests;
