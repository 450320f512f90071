//! A directory that appears atomically: written under another name beside its place, synced, then renamed.

use std::fs::{File, Permissions};
use std::io;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::parent_of;
use super::reservation::SpaceReservation;
use crate::error::{Error, Result};
use crate::partial;
pub use crate::partial::random_hex;
use crate::paths;

/// A directory that is not published yet. Dropping it before [`NewDir::publish`] removes it.
#[derive(Debug)]
pub struct NewDir {
    place: PathBuf,
    parent: PathBuf,
    temporary: PathBuf,
    published: bool,
    /// The lock that keeps other processes from removing it.
    lock: File,
}

impl NewDir {
    /// Creates a directory that will appear at `place`. Removes leftovers of killed writers beside it.
    ///
    /// # Errors
    /// The place is taken, or the parent directory is missing or not writable.
    pub fn begin(place: &Path) -> Result<Self> {
        if paths::metadata_of_link(place).is_ok() {
            return Err(exists(place));
        }
        let parent = parent_of(place);
        let name = place.file_name().unwrap_or_default().to_string_lossy();
        partial::remove_abandoned_dirs(&parent);
        let (temporary, lock) = partial::create_dir(&parent, &name)
            .map_err(|source| Error::file("create snapshot directory in", parent.display(), source))?;
        Ok(Self { place: place.to_owned(), parent, temporary, published: false, lock })
    }

    /// Creates a file in the directory, of mode 0600.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn create(&self, name: &str) -> Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        paths::open(self.temporary.join(name), flags, 0o600)
            .map_err(|source| Error::file("create", self.place.join(name).display(), source))
    }

    /// Creates a file without a name in the same file system. Closing it removes it.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn scratch(&self) -> Result<File> {
        const NAME: &str = "scratch";
        let file = self.create(NAME)?;
        paths::remove_file(&self.temporary.join(NAME))
            .map_err(|source| self.failed_to_write(NAME, source))?;
        Ok(file)
    }

    /// Reserves `bytes` of the file system for files in the directory.
    ///
    /// # Errors
    /// The file system has fewer, or a quota allows fewer.
    pub fn reserve(&self, bytes: u64) -> Result<SpaceReservation> {
        SpaceReservation::new(&self.place, self.scratch()?, bytes)
    }

    /// Renames a file in the directory.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (there, here) = (self.temporary.join(from), self.temporary.join(to));
        paths::rename(&there, &here, true).map_err(|source| self.failed_to_write(to, source))
    }

    /// Makes the error for a file in the directory that cannot be written.
    pub fn failed_to_write(&self, name: &str, source: io::Error) -> Error {
        Error::file("write", self.place.join(name).display(), source)
    }

    /// The place where the directory will appear, for errors.
    #[must_use]
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Publishes the directory. Its files are synced before, and read-only from then on.
    ///
    /// # Errors
    /// The place was taken meanwhile, or the file system refuses.
    pub fn publish(mut self) -> Result<()> {
        let place = self.place.clone();
        let failed = |act, source: io::Error| Error::file(act, place.display(), source);
        self.make_read_only().map_err(|source| failed("make read-only", source))?;
        self.lock.sync_all().map_err(|source| failed("sync snapshot directory", source))?;
        match paths::rename(&self.temporary, &self.place, false) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(exists(&self.place)),
            Err(error) => return Err(failed("rename snapshot directory to", error)),
        }
        let synced = paths::open_to_read(&self.parent).and_then(|dir| dir.sync_all());
        // Drop removes a directory whose name may not survive a power cut, under the name that it had before:
        // a reader must not find half of it.
        self.published = synced.is_ok() || paths::rename(&self.place, &self.temporary, true).is_err();
        synced.map_err(|source| Error::file("sync", self.parent.display(), source))
    }
}

impl NewDir {
    /// VMs map these files, so mode 0400 keeps users from changing them by mistake.
    fn make_read_only(&self) -> io::Result<()> {
        for name in paths::entries(&self.temporary)? {
            let file = paths::open(self.temporary.join(name), OFlags::RDONLY | OFlags::NOFOLLOW, 0)?;
            file.set_permissions(Permissions::from_mode(0o400))?;
        }
        Ok(())
    }
}

impl Drop for NewDir {
    fn drop(&mut self) {
        if !self.published {
            let names = paths::entries(&self.temporary).unwrap_or_default();
            names.iter().for_each(|name| drop(paths::remove_file(&self.temporary.join(name))));
            let _ = paths::remove_dir(&self.temporary);
        }
    }
}

fn exists(place: &Path) -> Error {
    Error::snapshot(place, "exists already; remove it or choose another name")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// rename(2) replaces an empty directory, which may belong to another program.
    #[test]
    fn directory_that_appears_meanwhile_is_not_replaced() {
        let parent = crate::testing::ScratchDir::new();
        let place = parent.join("place");
        let dir = NewDir::begin(&place).unwrap();
        dir.create("file").unwrap();
        fs::create_dir(&place).unwrap();
        let error = dir.publish().unwrap_err().to_string();
        assert_eq!(error, exists(&place).to_string());
        assert_eq!(fs::read_dir(&place).unwrap().count(), 0, "what was there is as it was");
        assert_eq!(fs::read_dir(&*parent).unwrap().count(), 1, "and nothing is left beside it");
    }
}
