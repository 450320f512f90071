//! Places below the destination of a stream.

use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2, renameat, statat, unlinkat,
};
use rustix::io::Errno;

use super::header::{failed, malformed};

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The directory into which a stream goes.
pub(super) struct Destination {
    directory: OwnedFd,
    /// The name that the first entry gets. Empty means the directory itself.
    name: Option<Vec<u8>>,
    /// The first component of all paths of the stream.
    first: Option<Vec<u8>>,
    /// The directory of the last entry. Entries of one directory come one after another.
    parent: Option<(Vec<u8>, OwnedFd)>,
}

impl Destination {
    /// Opens the directory.
    pub(super) fn open(directory: &Path, name: Option<&OsStr>) -> io::Result<Self> {
        let shown = directory.as_os_str().as_bytes();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(CWD, directory, flags, Mode::empty())
            .map_err(|error| failed("open the directory", shown, error))?;
        let name = match name.map(OsStr::as_bytes) {
            Some(b".") => Some(Vec::new()),
            Some(name @ (b"" | b"..")) => return Err(bad_name(name)),
            Some(name) if name.contains(&b'/') || name.contains(&0) => return Err(bad_name(name)),
            other => other.map(<[u8]>::to_vec),
        };
        Ok(Self { directory, name, first: None, parent: None })
    }

    /// The path below the directory. Empty means the directory.
    pub(super) fn path(&mut self, in_stream: &[u8]) -> io::Result<Vec<u8>> {
        let length = in_stream.iter().position(|&byte| byte == b'/').unwrap_or(in_stream.len());
        let (first, rest) = in_stream.split_at(length);
        if self.first.get_or_insert_with(|| first.to_vec()) != first {
            return Err(malformed("has entries outside of its first one"));
        }
        Ok(match &self.name {
            Some(name) if name.is_empty() => rest.get(1..).unwrap_or_default().to_vec(),
            Some(name) => [name, rest].concat(),
            None => in_stream.to_vec(),
        })
    }

    /// The directory that holds the entry.
    pub(super) fn parent(&mut self, path: &[u8]) -> io::Result<BorrowedFd<'_>> {
        let above = path.iter().rposition(|&byte| byte == b'/').map_or(&b""[..], |at| &path[..at]);
        let open = match self.parent.take() {
            Some((last, open)) if last == above => open,
            _ => self.directory(above)?,
        };
        Ok(self.parent.insert((above.to_vec(), open)).1.as_fd())
    }

    /// Opens a directory of the tree.
    pub(super) fn directory(&self, path: &[u8]) -> io::Result<OwnedFd> {
        let inside = if path.is_empty() { b"." } else { path };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        openat2(&self.directory, inside, DIRECTORY, Mode::empty(), resolve).map_err(|error| match error {
            Errno::LOOP | Errno::NOTDIR => {
                let why = "a component is no directory, and symlinks are not followed";
                failed("enter", path, io::Error::new(ErrorKind::NotADirectory, why))
            }
            other => failed("enter", path, other),
        })
    }

    /// Makes a directory that its owner alone enters. Returns false if there is one.
    pub(super) fn make_directory(&mut self, path: &[u8]) -> io::Result<bool> {
        let name = name(path);
        let parent = self.parent(path)?;
        match mkdirat(parent, name, Mode::RWXU) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => {
                let found = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
                    .map_err(|error| failed("make the directory", path, error))?;
                if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
                    return Ok(false);
                }
                let why = "another kind of entry has this name: remove that first";
                Err(failed("make the directory", path, io::Error::new(ErrorKind::AlreadyExists, why)))
            }
            Err(error) => Err(failed("make the directory", path, error)),
        }
    }

    /// Makes an entry by `make`, which gets its directory and a name that is free. Then gives it its name, in
    /// place of an entry that is no directory.
    pub(super) fn replace(
        &mut self,
        path: &[u8],
        make: &mut dyn FnMut(BorrowedFd<'_>, &str) -> io::Result<()>,
    ) -> io::Result<()> {
        let parent = self.parent(path)?;
        let temporary = Temporary::make(parent, path, make)?;
        renameat(parent, temporary.name.as_str(), parent, name(path)).map_err(|error| match error {
            Errno::ISDIR => {
                let why = "a directory has this name: remove that first";
                failed("make", path, io::Error::new(ErrorKind::IsADirectory, why))
            }
            other => failed("make", path, other),
        })
    }
}

/// The last component of a path.
pub(super) fn name(path: &[u8]) -> &[u8] {
    path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
}

fn bad_name(name: &[u8]) -> io::Error {
    let why = "it is no name of a file";
    failed("give the tree the name", name, io::Error::new(ErrorKind::InvalidInput, why))
}

/// An entry without its name. Its end removes what is left under the temporary one.
struct Temporary<'a> {
    parent: BorrowedFd<'a>,
    name: String,
}

impl<'a> Temporary<'a> {
    fn make(
        parent: BorrowedFd<'a>,
        path: &[u8],
        make: &mut dyn FnMut(BorrowedFd<'_>, &str) -> io::Result<()>,
    ) -> io::Result<Self> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = LAST.fetch_add(1, Ordering::Relaxed);
            let name = format!(".volt-{}-{number}", std::process::id());
            match statat(parent, name.as_str(), AtFlags::SYMLINK_NOFOLLOW) {
                // A killed process left it.
                Ok(_) => continue,
                Err(Errno::NOENT) => {}
                Err(error) => return Err(failed("make", path, error)),
            }
            let temporary = Self { parent, name };
            make(parent, &temporary.name)?;
            return Ok(temporary);
        }
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        // It is gone after a rename, unless both names were of one file.
        let _ = unlinkat(self.parent, self.name.as_str(), AtFlags::empty());
    }
}
