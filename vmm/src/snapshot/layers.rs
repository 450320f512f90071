//! The writable layers of a VM's disks in its snapshot: copied in the pause that the memory is from, so that a guest never finds
//! a disk older or newer than what it remembers. Each VM that is restored gets a fresh layer of its own over the snapshot's,
//! which is only read from then on: nothing is copied at a restore.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::reader::open_regular;
use crate::config::{Devices, FileRef};
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::sparse;
use crate::store::dir::NewDir;

fn name_of(id: &str) -> String {
    format!("disk-{id}.layer")
}

/// Copies the layers of a halted machine's disks into `dir`, and gives the copies and their names. They are to be synced.
///
/// # Errors
/// The host refuses to read or to take one.
pub fn save(machine: &Machine, dir: &NewDir) -> Result<Vec<(String, File)>> {
    capture(machine, |id| {
        let name = name_of(id);
        let copy = dir.create_again(&name)?;
        Ok((name, copy))
    })
}

/// Copies them into files without a name. Gives the copies and the disks' ids.
///
/// # Errors
/// As [`save`].
pub fn hold(machine: &Machine) -> Result<BTreeMap<String, File>> {
    let copies = capture(machine, |id| Ok((id.to_owned(), nameless(&std::env::temp_dir())?)))?;
    Ok(copies.into_iter().collect())
}

fn capture(
    machine: &Machine,
    mut make: impl FnMut(&str) -> Result<(String, File)>,
) -> Result<Vec<(String, File)>> {
    let mut copies = Vec::new();
    for (id, disk) in machine.platform().disks() {
        if let Some(overlay) = crate::sync::lock(disk).overlay() {
            let (name, copy) = make(id)?;
            overlay.capture(&copy).map_err(|source| Error::file("copy layer", id, source))?;
            copies.push((name, copy));
        }
    }
    Ok(copies)
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
        let open = |id: &str| match (self, self.find(id)?) {
            (Self::Directory(snapshot), FileRef::Path(path)) => Ok(open_regular(snapshot, &path)?.0),
            (_, found) => found.open("open layer"),
        };
        layered.map(|disk| Ok((name_of(&disk.id), open(&disk.id)?))).collect()
    }

    /// Copies those of a VM with these devices into a snapshot at `to`.
    ///
    /// # Errors
    /// As [`Source::open`], and the host refuses.
    pub fn carry(&self, devices: &Devices, to: &NewDir) -> Result<()> {
        self.open(devices)?.into_iter().try_for_each(|(name, layer)| {
            let copy = to.create(&name)?;
            let copied = sparse::whole(&layer, &copy).and_then(|()| copy.sync_all());
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
                let missing = || Error::snapshot(&path, "is missing");
                path.exists().then(|| FileRef::Path(path.clone())).ok_or_else(missing)
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
            (FileRef::Fd(_), true) => {}
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
    rustix::fs::open(place, flags, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
        .map(File::from)
        .map_err(|source| Error::file("create a layer in", place.display(), source))
}
