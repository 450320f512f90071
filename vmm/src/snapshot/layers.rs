//! The writable layers of a VM's disks in its snapshot, as they were in the pause that the memory is from, so that a guest never
//! finds a disk older or newer than what it remembers. They are copied as memory is, in passes while the guest runs. Each VM that is restored gets a fresh layer of its own over the snapshot's,
//! which is only read from then on: nothing is copied at a restore.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustix::fs::{FileType, Mode, OFlags};

use crate::config::{CheckedFile, Devices, FileRef};
use crate::devices::virtio::block::Block;
use crate::devices::virtio::block::copy::{LayerCopy, failed};
use crate::devices::virtio::block::map::CLUSTER;
use crate::error::{Error, Result};
use crate::memory::PAGE;
use crate::sparse;
use crate::store::dir::NewDir;
use crate::sync::lock;
use crate::vm::Vm;

fn name_of(id: &str) -> String {
    format!("disk-{id}.layer")
}

/// Copies of the layers of a VM's disks, made while it runs. Dropped, nothing is noted for them any more.
#[derive(Debug, Default)]
pub struct Copies(Vec<Copy>);

#[derive(Debug)]
struct Copy {
    id: String,
    /// What the copy is called where it goes.
    name: String,
    disk: Arc<Mutex<Block>>,
    copy: LayerCopy,
}

impl Copies {
    /// Begins copies into `dir`.
    ///
    /// # Errors
    /// The host refuses.
    pub fn into_directory(vm: &Vm, dir: &NewDir) -> Result<Self> {
        Self::begin(vm, |id| Ok((name_of(id), dir.create(&name_of(id))?)))
    }

    /// Begins copies into files without a name. They have the disks' ids.
    ///
    /// # Errors
    /// The host refuses.
    pub fn held(vm: &Vm) -> Result<Self> {
        Self::begin(vm, |id| Ok((id.to_owned(), nameless(&std::env::temp_dir())?)))
    }

    fn begin(vm: &Vm, make: impl Fn(&str) -> Result<(String, File)>) -> Result<Self> {
        let mut copies = Self::default();
        for (id, disk) in vm.on_platform(|platform| platform.disks().clone()) {
            let begun = lock(&disk).begin_copy()?;
            let Some(source) = begun else { continue };
            let made = make(&id).and_then(|(name, to)| Ok((name, LayerCopy::begin(source, to)?)));
            let (name, copy) = made.inspect_err(|_| lock(&disk).end_copy())?;
            copies.0.push(Copy { id, name, disk, copy });
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
        self.0.iter_mut().try_for_each(|Copy { id, copy, .. }| copy.copy_bulk().map_err(failed(id)))
    }

    /// Finds out what was written since the last time. Returns how many pages that and what was left before come to.
    pub fn look(&mut self) -> u64 {
        self.0.iter_mut().for_each(|Copy { disk, copy, .. }| copy.add(lock(disk).take_written()));
        self.left()
    }

    /// Copies them to memory, while `goes_on` says so of the pages that are left. Returns whether none is.
    ///
    /// # Errors
    /// As [`Copies::copy_bulk`].
    pub fn pass(&mut self, goes_on: &dyn Fn(u64) -> bool) -> Result<bool> {
        let mut others = self.left();
        for Copy { id, copy, .. } in &mut self.0 {
            others -= pages(copy.left());
            if !copy.pass(|left| goes_on(others + pages(left))).map_err(failed(id))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Brings what is in memory into the copies. Returns them by name. They are to be synced.
    ///
    /// # Errors
    /// As [`Copies::copy_bulk`].
    pub fn finish(mut self) -> Result<Vec<(String, File)>> {
        let copies = std::mem::take(&mut self.0);
        copies.iter().for_each(|one| lock(&one.disk).end_copy());
        copies
            .into_iter()
            .map(|Copy { id, name, copy, .. }| Ok((name, copy.finish().map_err(failed(&id))?)))
            .collect()
    }

    fn left(&self) -> u64 {
        self.0.iter().map(|one| pages(one.copy.left())).sum()
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        self.0.iter().for_each(|one| lock(&one.disk).end_copy());
    }
}

fn pages(clusters: u64) -> u64 {
    clusters * (CLUSTER / PAGE)
}

/// Where the layers are that VMs are restored from.
#[derive(Debug)]
pub enum Source {
    /// In the snapshot's directory.
    Directory(PathBuf),
    /// Here, by the ids of their disks.
    Held(BTreeMap<String, File>),
}

impl Source {
    /// Opens those of a VM with these devices, with the names that they have in a snapshot.
    ///
    /// # Errors
    /// One is missing or is no regular file.
    pub fn open(&self, devices: &Devices) -> Result<Vec<(String, File)>> {
        let layered = devices.disks.iter().filter(|disk| disk.layer.is_some());
        layered.map(|disk| Ok((name_of(&disk.id), self.find(&disk.id)?.open("open layer")?))).collect()
    }

    /// Copies those of a VM with these devices into a snapshot at `to`.
    ///
    /// # Errors
    /// As [`Source::open`], and the host refuses.
    pub fn carry(&self, devices: &Devices, to: &NewDir) -> Result<()> {
        self.open(devices)?.into_iter().try_for_each(|(name, layer)| {
            let copy = to.create(&name)?;
            let copied = sparse::whole(&layer, &copy).and_then(|_| copy.sync_all());
            copied.map_err(|source| to.failed_to_write(&name, source))
        })
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

/// Fresh layers, until their VM has them. Dropped before [`Fresh::keep`], those that were made at a place are removed again.
#[derive(Debug, Default)]
pub struct Fresh {
    /// The configuration refers to these by number.
    unnamed: Vec<File>,
    made: Vec<PathBuf>,
}

impl Fresh {
    /// The disks have them open.
    pub fn keep(mut self) {
        self.made.clear();
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        for path in &self.made {
            let _ = std::fs::remove_file(path); // the error that led here is the one to tell
        }
    }
}

/// Gives each disk of `devices` that has a layer a fresh one over the snapshot's: at the place that is named for it where
/// `placed` has its id, otherwise in a file without a name that goes with the VM.
///
/// # Errors
/// A layer is missing in the snapshot, the file named for a fresh one is there already, or the host refuses.
pub fn bring(from: &Source, devices: &mut Devices, placed: &BTreeSet<String>) -> Result<Fresh> {
    let mut fresh = Fresh::default();
    for disk in &mut devices.disks {
        let Some(layer) = &mut disk.layer else { continue };
        let found = from.find(&disk.id)?;
        if disk.read_only {
            (*layer, disk.beneath) = (found, None);
            continue;
        }
        disk.beneath = Some(found);
        match (&*layer, placed.contains(&disk.id)) {
            (FileRef::Path(place), true) => {
                create(place)?;
                fresh.made.push(place.clone());
            }
            (FileRef::Checked(_) | FileRef::Fd(_) | FileRef::Untrusted(_), true) => {}
            (_, false) => {
                let file = nameless(&std::env::temp_dir())?;
                *layer = FileRef::Fd(file.as_raw_fd());
                fresh.unnamed.push(file);
            }
        }
    }
    Ok(fresh)
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
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn layer_that_is_replaced_by_a_link_after_it_was_found_is_not_followed() {
        let place = std::env::temp_dir().join(format!("volt-layers-{}", std::process::id()));
        let _ = fs::remove_dir_all(&place);
        fs::create_dir(&place).unwrap();
        let (layer, secret) = (place.join("disk-root.layer"), place.join("secret"));
        fs::write(&layer, "layer").unwrap();
        fs::write(&secret, "secret").unwrap();
        let source = Source::Directory(place.clone());
        let found = source.find("root").unwrap();
        assert_eq!(found.to_string(), layer.to_str().unwrap());
        fs::remove_file(&layer).unwrap();
        symlink(&secret, &layer).unwrap();
        assert_eq!(std::io::read_to_string(found.open("open layer").unwrap()).unwrap(), "layer");
        let error = source.find("root").unwrap_err().to_string();
        assert!(error.contains("disk-root.layer: is not a regular file"), "{error}");
        assert!(source.find("other").unwrap_err().to_string().contains("is missing"));
        fs::remove_dir_all(&place).unwrap();
    }
}
