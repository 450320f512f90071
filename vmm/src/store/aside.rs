//! Files that wait under other names, `.NAME.ID.replaced`, while new ones take their places. A pair of files
//! has one id of 32 hex digits. A living writer holds locks (flock) on the files.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::parent_of;
use crate::partial::{Lock, lock};
use crate::paths;

const SUFFIX: &str = ".replaced";
const ID: usize = 32;

/// A file that was set aside.
#[derive(Debug)]
pub(super) struct SetAside {
    place: PathBuf,
    aside: PathBuf,
    _lock: File,
}

impl SetAside {
    /// Sets the file at `place` aside, if there is one.
    ///
    /// # Errors
    /// The file system refuses.
    pub(super) fn of(place: &Path, id: &str) -> io::Result<Option<Self>> {
        let opened = match paths::open(place, OFlags::NOFOLLOW | OFlags::NONBLOCK, 0) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        // Without a lock, on a file system that has none, another writer may undo this one's work.
        let _ = lock(&opened)?;
        let aside = name_of(place, id);
        paths::rename(place, &aside, false)?;
        Ok(Some(Self { place: place.to_owned(), aside, _lock: opened }))
    }

    /// Gives the file its former name.
    pub(super) fn bring_back(self) {
        if let Err(error) = paths::rename(&self.aside, &self.place, false) {
            let (aside, place) = (self.aside.display(), self.place.display());
            log::error!("cannot rename {aside} back to {place}: {error}");
        }
    }

    pub(super) fn remove(self) {
        if let Err(error) = paths::remove_file(&self.aside) {
            log::warn!("cannot remove {}, which was replaced: {error}", self.aside.display());
        }
    }
}

fn name_of(place: &Path, id: &str) -> PathBuf {
    let name = place.file_name().unwrap_or_default().to_string_lossy();
    parent_of(place).join(format!(".{name}.{id}{SUFFIX}"))
}

/// The ids under which the file at `place` was set aside.
fn ids_of(place: &Path) -> Vec<String> {
    let name = place.file_name().unwrap_or_default();
    let id_of = |entry: &[u8]| {
        let rest = entry.strip_prefix(b".")?.strip_prefix(name.as_bytes())?.strip_prefix(b".")?;
        let id = std::str::from_utf8(rest.strip_suffix(SUFFIX.as_bytes())?).ok()?;
        (id.len() == ID && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then(|| id.to_owned())
    };
    let entries = paths::entries(&parent_of(place)).unwrap_or_default();
    entries.iter().filter_map(|entry| id_of(entry.as_bytes())).collect()
}

/// Ends the work of a killed writer of this state and memory: brings its old files back if the state is
/// missing, and otherwise removes them. Best effort: nothing depends on it.
pub(super) fn recover(state: &Path, memory: &Path) {
    let mut ids = ids_of(state);
    ids.extend(ids_of(memory));
    ids.sort();
    ids.dedup();
    for id in ids {
        let asides = [memory, state].map(|place| (place, name_of(place, &id)));
        let Some(_locks) = locked(asides.iter().map(|(_, aside)| aside.as_path())) else { continue };
        let is_missing = |path: &Path| {
            let found = paths::metadata_of_link(path);
            found.is_err_and(|error| error.kind() == ErrorKind::NotFound)
        };
        let undoes = is_missing(state);
        for (place, aside) in asides.iter().filter(|(_, aside)| !is_missing(aside)) {
            let done = match undoes {
                true => paths::rename(aside, place, true),
                false => paths::remove_file(aside),
            };
            let place = place.display();
            match done {
                Ok(()) if undoes => log::warn!("brought back {place}: its writer was killed"),
                Ok(()) => log::info!("removed {}, which was replaced", aside.display()),
                Err(error) => log::warn!("cannot end the work of a killed writer of {place}: {error}"),
            }
        }
    }
}

/// Locks the files that exist, or returns nothing if a living writer holds one.
fn locked<'a>(files: impl Iterator<Item = &'a Path>) -> Option<Vec<File>> {
    let mut locks = Vec::new();
    for path in files {
        match paths::open(path, OFlags::NOFOLLOW | OFlags::NONBLOCK, 0) {
            Ok(file) if lock(&file).is_ok_and(|lock| lock != Lock::Taken) => locks.push(file),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            _ => return None,
        }
    }
    Some(locks)
}
