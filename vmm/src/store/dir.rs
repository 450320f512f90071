//! A directory that appears atomically: written under another name beside its place, synced, then renamed.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags};

use super::reservation::SpaceReservation;
use crate::error::{Error, Result};
use crate::partial;
pub use crate::partial::random_hex;

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
        if place.symlink_metadata().is_ok() {
            return Err(exists(place));
        }
        let parent = match place.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
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
        OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(self.temporary.join(name))
            .map_err(|source| Error::file("create", self.place.join(name).display(), source))
    }

    /// Creates a file without a name in the same file system. Closing it removes it.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn scratch(&self) -> Result<File> {
        const NAME: &str = "scratch";
        let file = self.create(NAME)?;
        fs::remove_file(self.temporary.join(NAME)).map_err(|source| self.failed_to_write(NAME, source))?;
        Ok(file)
    }

    /// Reserves `bytes` of the file system for files in the directory.
    ///
    /// # Errors
    /// The file system has fewer, or a quota allows fewer.
    pub fn reserve(&self, bytes: u64) -> Result<SpaceReservation> {
        SpaceReservation::new(self.scratch()?, bytes).map_err(|source| self.failed_to_reserve(bytes, source))
    }

    /// Reserves `bytes` more.
    ///
    /// # Errors
    /// As [`NewDir::reserve`].
    pub fn grow(&self, reserved: &SpaceReservation, bytes: u64) -> Result<()> {
        reserved.grow(bytes).map_err(|source| self.failed_to_reserve(bytes, source))
    }

    fn failed_to_reserve(&self, bytes: u64, source: io::Error) -> Error {
        let (mib, place) = (bytes.div_ceil(1 << 20), self.place.display());
        Error::host(format!("reserve {mib} MiB for snapshot {place}"), source)
    }

    /// Renames a file in the directory.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (there, here) = (self.temporary.join(from), self.temporary.join(to));
        fs::rename(there, here).map_err(|source| self.failed_to_write(to, source))
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
        match rustix::fs::renameat_with(CWD, &self.temporary, CWD, &self.place, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            Err(rustix::io::Errno::EXIST) => return Err(exists(&self.place)),
            Err(errno) => return Err(failed("rename snapshot directory to", errno.into())),
        }
        let synced = File::open(&self.parent).and_then(|dir| dir.sync_all());
        // Drop removes a directory whose name may not survive a power cut, under the name that it had before:
        // a reader must not find half of it.
        self.published = synced.is_ok() || fs::rename(&self.place, &self.temporary).is_err();
        synced.map_err(|source| Error::file("sync", self.parent.display(), source))
    }
}

impl NewDir {
    /// VMs map these files, so mode 0400 keeps users from changing them by mistake.
    fn make_read_only(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.temporary)? {
            fs::set_permissions(entry?.path(), Permissions::from_mode(0o400))?;
        }
        Ok(())
    }
}

impl Drop for NewDir {
    fn drop(&mut self) {
        if !self.published {
            let _ = fs::remove_dir_all(&self.temporary);
        }
    }
}

fn exists(place: &Path) -> Error {
    Error::snapshot(place, "exists already; remove it or choose another name")
}

#[cfg(test)]
mod tests {
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
