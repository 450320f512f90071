//! A snapshot's directory, and opening the files in it.

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::error::{Error, Result};
use crate::paths::{self, OpenedAhead};
use crate::snapshot::{MEMORY_FILE, PACK_FILE, STATE_FILE};

/// Flags for a file that is read. Opening it does not wait for the writer of a pipe.
const TO_READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOFOLLOW);

/// Asks the opener for the files of a snapshot with all of its memory, if the calling thread is one that
/// asks.
pub fn open_ahead(snapshot: &Path) -> OpenedAhead {
    OpenedAhead::new([STATE_FILE, PACK_FILE, MEMORY_FILE].map(|name| (snapshot.join(name), TO_READ)))
}

/// A snapshot's directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SnapshotDir<'a> {
    path: &'a Path,
    held: Option<&'a OwnedFd>,
}

/// The directory of a diff's base that the restore may read.
#[derive(Debug)]
pub(crate) struct GrantedBase {
    /// Path of the directory.
    pub path: PathBuf,
    /// The open directory, if its path had to be checked. A directory put there later is not read.
    pub held: Option<OwnedFd>,
}

impl GrantedBase {
    pub fn place(&self) -> SnapshotDir<'_> {
        SnapshotDir { path: &self.path, held: self.held.as_ref() }
    }
}

impl<'a, P: AsRef<Path> + ?Sized> From<&'a P> for SnapshotDir<'a> {
    fn from(path: &'a P) -> Self {
        Self { path: path.as_ref(), held: None }
    }
}

impl<'a> SnapshotDir<'a> {
    pub fn path(&self) -> &'a Path {
        self.path
    }

    /// Whether the directory has a file of this name. Links are not followed, so the answer reveals nothing
    /// about their targets.
    ///
    /// # Errors
    /// The host cannot tell.
    pub fn has(&self, name: &str) -> Result<bool> {
        let path = self.path.join(name);
        let (directory, at) = self.at(name.as_ref(), &path);
        match paths::metadata_at(directory, at) {
            Ok(_) => Ok(true),
            Err(error) if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind()) => {
                Ok(false)
            }
            Err(source) => Err(Error::file("look at", path.display(), source)),
        }
    }

    /// Opens a regular file of the snapshot, and returns it with its length. Opening does not block on a
    /// pipe. Symbolic links are not followed, because they could name any file of the host.
    ///
    /// # Errors
    /// Names the file and its fault.
    pub fn open_regular(&self, name: impl AsRef<Path>) -> Result<(File, u64)> {
        let path = self.path.join(name.as_ref());
        let (directory, at) = self.at(name.as_ref(), &path);
        let file = paths::open_at(directory, at, TO_READ, 0).map_err(|why| self.missing(&path, why))?;
        let metadata = file.metadata().map_err(|source| Error::file("look at", path.display(), source))?;
        if !metadata.is_file() {
            return Err(Error::snapshot(path, "is not a regular file"));
        }
        Ok((file, metadata.len()))
    }

    /// The directory for a lookup, and the path to look up in it.
    fn at<'b>(&'b self, name: &'b Path, path: &'b Path) -> (Option<BorrowedFd<'b>>, &'b Path) {
        self.held.map_or((None, path), |held| (Some(held.as_fd()), name))
    }

    /// The error for a file that should exist and cannot be opened.
    fn missing(&self, file: &Path, source: std::io::Error) -> Error {
        match source.kind() {
            std::io::ErrorKind::NotFound if paths::metadata(self.path).is_err() => {
                Error::snapshot(self.path, "there is no such directory")
            }
            std::io::ErrorKind::NotFound => Error::snapshot(file, "is missing"),
            _ if source.raw_os_error() == Some(libc::ELOOP) => {
                Error::snapshot(file, "is a symbolic link; a snapshot's files may not be links")
            }
            std::io::ErrorKind::NotADirectory => Error::snapshot(self.path, "is not a directory"),
            _ => Error::file("open", file.display(), source),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn directory_that_is_replaced_after_it_was_checked_is_not_read() {
        let place = crate::testing::ScratchDir::new();
        let (base, moved, secret) = (place.join("base"), place.join("moved"), place.join("secret"));
        for (directory, text) in [(&base, "own"), (&secret, "secret")] {
            fs::create_dir_all(directory).unwrap();
            fs::write(directory.join("state.json"), text).unwrap();
        }
        fs::write(secret.join("memory.snap"), "secret").unwrap();
        let held = fs::File::open(&base).unwrap().into();
        let checked = GrantedBase { path: base.clone(), held: Some(held) };
        fs::rename(&base, &moved).unwrap();
        symlink(&secret, &base).unwrap();
        let read = |place: SnapshotDir<'_>| {
            let (file, _) = place.open_regular("state.json").unwrap();
            std::io::read_to_string(file).unwrap()
        };
        assert_eq!(read(checked.place()), "own");
        assert!(!checked.place().has("memory.snap").unwrap());
        let error = checked.place().open_regular("memory.snap").unwrap_err().to_string();
        assert!(error.contains("memory.snap") && error.contains("is missing"), "{error}");
        // By path, it is the other directory.
        assert_eq!(read(SnapshotDir::from(&base)), "secret");
    }
}
