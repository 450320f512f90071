//! The writable layers of a VM's disks in its snapshot, as they were in the pause that the memory is from, so that a guest never
//! finds a disk older or newer than what it remembers. They are copied as memory is, in passes while the guest runs. Each VM that is restored gets a fresh layer of its own over the snapshot's,
//! which is only read from then on: nothing is copied at a restore.
//!
//! The state names each layer by the digest of its map, so that another snapshot's layer over the same base
//! is refused. The data of the clusters has no digest: it would have to be read for that, where a copy shares
//! its blocks with the layer.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustix::fs::{FileType, Mode, OFlags};

use super::digest;
use crate::config::{CheckedFile, Devices, FileRef};
use crate::control::RunState;
use crate::devices::virtio::block::Block;
use crate::devices::virtio::block::copy::{LayerCopy, failed};
use crate::devices::virtio::block::map::{CLUSTER, Map};
use crate::error::{Error, Result};
use crate::machine::Machine;
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

/// A copy that is a layer by now.
#[derive(Debug)]
pub struct Finished {
    /// Of its disk.
    pub id: String,
    /// Of the file.
    pub name: String,
    /// To be synced.
    pub file: File,
    /// As [`Metadata::layers`](super::Metadata::layers) has it.
    pub digest: String,
}

/// What names them, by the ids of their disks.
pub fn digests(layers: &[Finished]) -> BTreeMap<String, String> {
    layers.iter().map(|layer| (layer.id.clone(), layer.digest.clone())).collect()
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
    pub fn without_names(vm: &Vm) -> Result<Self> {
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

    /// Bytes of copies that are held in memory.
    pub fn held(&self) -> u64 {
        self.0.iter().map(|one| one.copy.held()).sum()
    }

    /// Bytes to reserve for what the last look found. They count as reserved from now on.
    ///
    /// # Errors
    /// As [`Copies::copy_bulk`].
    pub fn place_left(&mut self) -> Result<u64> {
        self.0.iter_mut().map(|Copy { id, copy, .. }| copy.place_left().map_err(failed(id))).sum()
    }

    /// Copies them as [`LayerCopy::pass`] does, while `goes_on` says so of the pages that are left. Returns
    /// whether none is.
    ///
    /// # Errors
    /// As [`Copies::copy_bulk`].
    pub fn pass(
        &mut self,
        guest: RunState,
        about_to_write: &dyn Fn(u64),
        goes_on: &dyn Fn(u64) -> bool,
    ) -> Result<bool> {
        let mut others = self.left();
        for Copy { id, copy, .. } in &mut self.0 {
            others -= pages(copy.left());
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
    /// As [`Copies::copy_bulk`]; or a sync of a layer failed.
    pub fn finish(mut self, about_to_write: &dyn Fn(u64)) -> Result<Vec<Finished>> {
        let copies = std::mem::take(&mut self.0);
        copies.iter().for_each(|one| lock(&one.disk).end_copy());
        copies.iter().try_for_each(|one| lock(&one.disk).check_copy())?;
        copies
            .into_iter()
            .map(|Copy { id, name, copy, .. }| {
                let (file, digest) = copy.finish(about_to_write).map_err(failed(&id))?;
                Ok(Finished { id, name, file, digest: digest::format(digest) })
            })
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
            let map =
                Map::load_any(&file).map_err(|source| Error::file("read layer", place.display(), source))?;
            let map = map.map_err(|problem| Error::snapshot(&place, problem))?;
            let digest = map.named().digest;
            check_digest(&place, named.get(id), digest)?;
            Ok((file, digest::format(digest)))
        };
        layered.map(|disk| Ok((disk.id.clone(), open(&disk.id)?))).collect()
    }

    /// Copies those of a VM with these devices into a snapshot at `to`, if they are what `named` says.
    /// Returns what names them.
    ///
    /// # Errors
    /// As [`Source::open`], and the host refuses.
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

/// Gives each disk of `devices` that has a layer a fresh one over the snapshot's: at the place that is named
/// for it where `placed` has its id, otherwise in a file without a name that goes with the VM. A fork's layer
/// goes with its VMs, too: a place that is named for a child's layer gets a copy of it, because nobody could
/// open a layer over it later.
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
        let kept = match (placed.contains(&disk.id), &*layer, from) {
            (true, FileRef::Path(place), _) => {
                let made = create(place)?;
                fresh.made.push(place.clone());
                Some(made)
            }
            (true, given, Source::Held(_)) => Some(given.open_writable("open layer", false)?),
            (true, _, Source::Directory(_)) => None,
            (false, ..) => {
                let file = nameless(&std::env::temp_dir())?;
                *layer = FileRef::Fd(file.as_raw_fd());
                fresh.unnamed.push(file);
                None
            }
        };
        disk.beneath = match (from, kept) {
            (Source::Held(_), Some(kept)) => {
                copy_layer(&found, &kept)
                    .map_err(|source| Error::file("copy layer to", layer.to_string(), source))?;
                None
            }
            _ => Some(found),
        };
    }
    Ok(fresh)
}

/// Makes an empty file a copy of a layer, with an id of its own. The file becomes a layer once its data and
/// its map are on disk: after a power cut it is a whole copy, or no layer.
fn copy_layer(from: &FileRef, to: &File) -> std::io::Result<()> {
    let invalid = |problem: String| std::io::Error::new(std::io::ErrorKind::InvalidData, problem);
    if to.metadata()?.len() > 0 {
        return Err(invalid("it is not empty".into()));
    }
    let from = from.open("open layer").map_err(std::io::Error::other)?;
    let mut map = Map::load_any(&from)?.map_err(invalid)?;
    // Shared blocks are on disk already.
    if !sparse::share(&from, to) {
        to.set_len(map.end())?;
        sparse::data(&from, to, map.data()..map.end())?;
    }
    map.write_bits(to)?;
    to.sync_data()?;
    map.renew(to)
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
    use std::os::unix::fs::{FileExt, symlink};

    use super::*;
    use crate::devices::virtio::block::map::Base;
    use crate::testing::{apart, refuse_calls};

    /// After a power cut its clusters would be holes: zeros where the guest had synced data.
    #[test]
    fn copied_layer_is_no_layer_before_its_data_is_synced() {
        let (from, to) = (nameless(&std::env::temp_dir()).unwrap(), nameless(&std::env::temp_dir()).unwrap());
        let mut map = Map::make(&from, Base { len: 3 * CLUSTER, digest: 7 }, false).unwrap();
        from.write_all_at(&[5; CLUSTER as usize], map.data() + CLUSTER).unwrap();
        map.include(1..2);
        map.write_copy(&from).unwrap();
        let given = FileRef::Fd(from.as_raw_fd());
        let refused = to.try_clone().unwrap();
        apart({
            let given = given.clone();
            move || {
                refuse_calls(&[libc::SYS_fdatasync, libc::SYS_fsync], libc::EIO);
                copy_layer(&given, &refused).expect_err("the host cannot sync it");
            }
        });
        // A clone has the header of its source, whose blocks are on disk.
        if !sparse::share(&from, &nameless(&std::env::temp_dir()).unwrap()) {
            Map::load_any(&to).unwrap().expect_err("it has a header before its data is on disk");
        }
        to.set_len(0).unwrap();
        copy_layer(&given, &to).unwrap();
        let copy = Map::load_any(&to).unwrap().unwrap();
        assert!(copy.present(0..3).eq(std::iter::once(1..2)));
        assert_ne!(copy.named(), Map::load_any(&from).unwrap().unwrap().named(), "its id is its own");
        let mut data = [0; 2 * CLUSTER as usize];
        to.read_exact_at(&mut data, map.data()).unwrap();
        assert!(data[..CLUSTER as usize] == [0; CLUSTER as usize]);
        assert!(data[CLUSTER as usize..] == [5; CLUSTER as usize]);
    }

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
