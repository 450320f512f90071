//! Directories of the user's data: of images, snapshots and volumes, and one for the disks of each VM that
//! runs an image. Unlike run directories, these outlive a restart of the host, so that a record may be gone
//! before the data directory that it names.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use volt_vmm::internal::{key_directory, random_hex};

use super::listing;
use super::root::RunRoot;
use crate::failure::Failure;

/// The directory of all data directories, below the user's data.
const ALL: &str = "vms";

/// A directory of this user's data. It need not exist.
///
/// # Errors
/// The environment names no place for the user's data.
pub(crate) fn of_user(name: &'static str) -> Result<PathBuf, Failure> {
    let data = key_directory().map_err(|problem| Failure::config(name, problem))?;
    Ok(data.join(name))
}

/// The path of a new data directory. It does not exist yet.
///
/// # Errors
/// The environment names no place, or the host has no random bytes.
pub(crate) fn new() -> Result<PathBuf, Failure> {
    Ok(of_user(ALL)?.join(random_hex()?))
}

/// Makes a data directory. It counts as used until the result, and all copies of it in other processes, are
/// closed.
///
/// # Errors
/// The host refuses.
pub(crate) fn make(directory: &Path) -> io::Result<File> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let opened = File::open(directory)?;
    opened.lock()?;
    Ok(opened)
}

/// Removes data directories that no record names and no process uses.
///
/// # Errors
/// The records cannot be read. A directory that cannot be removed stays.
pub(crate) fn remove_abandoned(root: &RunRoot) -> Result<(), Failure> {
    remove_in(&of_user(ALL)?, root)
}

fn remove_in(place: &Path, root: &RunRoot) -> Result<(), Failure> {
    // No record is written or removed meanwhile.
    let _lock = root.lock()?;
    let named: Vec<_> = listing::all(root)?.into_iter().filter_map(|vm| vm.record.data).collect();
    for directory in fs::read_dir(place).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let is_used = || File::open(&directory).and_then(|opened| Ok(opened.try_lock()?)).is_err();
        if !named.contains(&directory) && !is_used() {
            let _ = fs::remove_dir_all(&directory);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::record::{NewRecord, Origin};
    use super::*;

    #[test]
    fn directory_without_a_record_goes_unless_a_process_uses_it() {
        let (dir, root) = super::super::root::tests::scratch();
        let place = dir.path("vms");
        let [named, used, abandoned] = ["named", "used", "abandoned"].map(|name| place.join(name));
        drop((make(&named).unwrap(), make(&abandoned).unwrap()));
        let process = make(&used).unwrap();
        let new = NewRecord { data: Some(named.clone()), ..NewRecord::of(Origin::Image("i".to_owned())) };
        let claim = root.claim(Some("web".parse().unwrap()), new).unwrap();
        remove_in(&place, &root).unwrap();
        assert!(named.exists() && used.exists() && !abandoned.exists());
        drop((process, claim));
        assert!(!named.exists(), "it goes with a VM that never started");
        remove_in(&place, &root).unwrap();
        assert!(!used.exists());
    }
}
