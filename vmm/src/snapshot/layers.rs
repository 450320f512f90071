//! The writable layers of a VM's disks in its snapshot: copied in the pause that the memory is from, so that a guest never finds
//! a disk older or newer than what it remembers. Each VM that is restored gets a fresh copy over the same base.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, SeekFrom};
use rustix::io::Errno;

use crate::config::{Devices, FileRef};
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::store::dir::NewDir;

/// Bytes copied at once.
const STEP: usize = 1 << 20;

fn name_of(id: &str) -> String {
    format!("disk-{id}.layer")
}

/// Copies the layers of a halted machine's disks into `dir`.
///
/// # Errors
/// The host refuses to read or to take one.
pub fn save(machine: &Machine, dir: &NewDir) -> Result<()> {
    machine.platform().disks().iter().try_for_each(|(id, disk)| {
        let disk = crate::sync::lock(disk);
        let Some(layer) = disk.layer() else { return Ok(()) };
        let name = name_of(id);
        let failed = |source| Error::file("write", dir.place().join(&name).display(), source);
        let copy = dir.create(&name)?;
        copy_contents(layer, &copy).and_then(|()| copy.sync_all()).map_err(failed)
    })
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

/// Gives each disk of `devices` that has a layer a fresh one with what the snapshot's has: at the place that is named for it
/// where `placed` has its id, otherwise in a file without a name that goes with the VM.
///
/// # Errors
/// A layer is missing in the snapshot, the file named for a copy is there already, or the host refuses.
pub fn bring(snapshot: &Path, devices: &mut Devices, placed: &BTreeSet<String>) -> Result<Fresh> {
    let mut fresh = Fresh::default();
    for disk in &mut devices.disks {
        let Some(layer) = &mut disk.layer else { continue };
        let path = snapshot.join(name_of(&disk.id));
        let from = File::open(&path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => Error::snapshot(&path, "is missing"),
            _ => Error::file("open", path.display(), source),
        })?;
        if disk.read_only {
            *layer = FileRef::Path(path);
            continue;
        }
        let (to, name) = match (&*layer, placed.contains(&disk.id)) {
            (FileRef::Path(place), true) => {
                let file = create(place)?;
                fresh.made.push(place.clone());
                (file, place.display().to_string())
            }
            (FileRef::Fd(_), true) => (layer.open_writable("open layer", false)?, layer.to_string()),
            _ => {
                let place = std::env::temp_dir();
                (nameless(&place)?, format!("a file in {}", place.display()))
            }
        };
        copy_contents(&from, &to).map_err(|source| Error::file("write layer to", name, source))?;
        if !placed.contains(&disk.id) {
            *layer = FileRef::Fd(to.as_raw_fd());
            fresh.unnamed.push(to);
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

/// Shares the blocks where the file system can, and copies those that there are where not.
fn copy_contents(from: &File, to: &File) -> io::Result<()> {
    if rustix::fs::ioctl_ficlone(to, from).is_ok() {
        return Ok(());
    }
    let len = from.metadata()?.len();
    to.set_len(len)?;
    let mut buffer = vec![0; STEP];
    let mut end = 0;
    while end < len {
        let mut at = match rustix::fs::seek(from, SeekFrom::Data(end)) {
            Ok(at) => at,
            Err(Errno::NXIO) => break,
            Err(errno) => return Err(errno.into()),
        };
        end = rustix::fs::seek(from, SeekFrom::Hole(at))?.min(len);
        while at < end {
            let step = &mut buffer[..((end - at) as usize).min(STEP)];
            from.read_exact_at(step, at)?;
            to.write_all_at(step, at)?;
            at += step.len() as u64;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_the_data_and_the_holes() {
        let [from, to] = [(), ()].map(|()| nameless(&std::env::temp_dir()).unwrap());
        from.set_len(64 << 20).unwrap();
        from.write_all_at(b"near the start", 8192).unwrap();
        from.write_all_at(&[9; 3 << 20], 30 << 20).unwrap();
        copy_contents(&from, &to).unwrap();
        let mut found = vec![0; 3 << 20];
        to.read_exact_at(&mut found, 30 << 20).unwrap();
        assert!(found.iter().all(|byte| *byte == 9));
        to.read_exact_at(&mut found[..14], 8192).unwrap();
        assert_eq!(&found[..14], b"near the start");
        let blocks = |file: &File| std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap());
        assert_eq!(to.metadata().unwrap().len(), 64 << 20);
        assert!(blocks(&to) <= blocks(&from) + 64, "{} {}", blocks(&to), blocks(&from));
    }
}
