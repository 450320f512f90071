//! The places of pagers: a socket for each pack, in a directory that only this user can enter.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::fs::OFlags;

use crate::error::{Error, Invalid, Result};
use crate::paths;

/// The default directory. Root has one place, whichever user's environment it has.
#[must_use]
pub fn default_directory() -> PathBuf {
    let variable = |name| std::env::var_os(name).filter(|dir| !dir.is_empty()).map(PathBuf::from);
    if let Some(given) = variable("VOLT_RUN_DIR") {
        return given;
    }
    let own = variable("XDG_RUNTIME_DIR").filter(|_| !rustix::process::geteuid().is_root());
    own.unwrap_or_else(|| PathBuf::from("/run")).join("volt-vmm")
}

/// Longest name of a group, in bytes: the path of a socket must be short.
const LONGEST_GROUP: usize = 32;
/// Longest path of a socket, in bytes (unix(7)).
const LONGEST_PATH: usize = 107;
/// Suffix of a lock's name.
const LOCK: &str = ".lock";
/// Prefix of the name of a group's directory.
const GROUP: &str = "group-";
/// Attempts to make a directory that another process removes at the same time.
const ATTEMPTS: u32 = 16;

/// Checks that a trust group can have this name.
///
/// # Errors
/// [`Error::Config`] if it cannot.
pub(super) fn check_group(name: &str) -> Result<()> {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if name.is_empty() || name.len() > LONGEST_GROUP || !name.bytes().all(is_valid) {
        let problem = Invalid::PagerGroup { name: name.to_owned(), longest: LONGEST_GROUP };
        return Err(Error::config("pager_group", problem));
    }
    Ok(())
}

/// The socket and the lock of the pager of one pack.
#[derive(Clone, Debug)]
pub struct PagerPlace {
    /// The directory of all groups.
    root: PathBuf,
    /// The directory of this place: the root, or the directory of its group.
    directory: PathBuf,
    name: String,
}

impl PagerPlace {
    /// The place for the pack in `file`. Makes the directory if it is missing. The name follows from the file
    /// system's data about the file, not from its content: a changed or replaced file has another place. A
    /// trust group has its own directory, so that a VM confined to it reaches no other group's pager.
    ///
    /// # Errors
    /// The group's name is invalid, the socket's path is too long, the directory cannot be made, or other
    /// users can enter it.
    pub fn of(file: &File, directory: &Path, group: Option<&str>) -> Result<Self> {
        let metadata = file.metadata().map_err(|source| Error::file("look at", "a packed memory", source))?;
        let name = format!(
            "pager-{:x}-{:x}-{:x}-{:x}.{:x}",
            metadata.dev(),
            metadata.ino(),
            metadata.len(),
            metadata.ctime(),
            metadata.ctime_nsec()
        );
        let Some(group) = group else {
            let place = Self { root: directory.to_owned(), directory: directory.to_owned(), name };
            place.check_length()?;
            private(directory)?;
            return Ok(place);
        };
        check_group(group)?;
        let root = directory.to_owned();
        let place = Self { directory: root.join(format!("{GROUP}{group}")), root, name };
        place.check_length()?;
        private(directory)?;
        private(&place.directory)?;
        Ok(place)
    }

    fn check_length(&self) -> Result<()> {
        let socket = self.socket();
        let len = socket.as_os_str().len();
        if len <= LONGEST_PATH {
            return Ok(());
        }
        let problem = format!(
            "the path of the pager's socket, {}, has {len} bytes, more than {LONGEST_PATH}: choose a \
             shorter directory",
            socket.display()
        );
        Err(Error::config("pager", problem))
    }

    /// The path of its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.directory.join(&self.name)
    }

    /// Whether a running or starting pager has claimed it.
    #[must_use]
    pub fn is_claimed(&self) -> bool {
        // The check itself holds a shared claim for a moment.
        paths::open_to_read(self.lock_path()).is_ok_and(|file| {
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared)
                == Err(rustix::io::Errno::WOULDBLOCK)
        })
    }

    fn lock_path(&self) -> PathBuf {
        self.directory.join(format!("{}{LOCK}", self.name))
    }

    /// Claims the place until the result is dropped. Returns `None` if another process has it. Makes the
    /// group's directory again if another process removed it.
    ///
    /// # Errors
    /// The host refuses a file for the lock.
    pub fn claim(&self) -> Result<Option<Claim>> {
        let mut claim = self.claim_in_directory();
        for _ in 0..ATTEMPTS {
            match &claim {
                Err(source) if source.kind() == io::ErrorKind::NotFound && self.directory != self.root => {}
                _ => break,
            }
            // A directory that is mounted here and was removed elsewhere still looks present, but accepts no
            // file.
            private(&self.directory)?;
            claim = self.claim_in_directory();
        }
        claim.map_err(|why| Error::file("claim", self.lock_path().display(), why))
    }

    /// As [`Self::claim`], but fails with `NotFound` if the directory is gone.
    fn claim_in_directory(&self) -> io::Result<Option<Claim>> {
        let path = self.lock_path();
        loop {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK;
            let file = paths::open(&path, flags, 0o600)?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                other => other?,
            }
            // The owner before may have removed the file between the two calls.
            let inode = file.metadata()?.ino();
            if paths::metadata(&path).is_ok_and(|there| there.ino() == inode) {
                return Ok(Some(Claim { lock: path, socket: self.socket(), _file: file }));
            }
        }
    }

    /// Removes sockets and locks that killed pagers of any group left. Directories of groups stay, even empty
    /// ones: a jail may have mounted one, and a mounted directory that is removed takes no file any more.
    pub fn remove_abandoned(&self) {
        self.remove_abandoned_in(&self.root);
        for name in paths::entries(&self.root).unwrap_or_default() {
            let is_group = name.to_str().is_some_and(|name| name.starts_with(GROUP));
            let directory = self.root.join(name);
            if !is_group || !is_private(&directory).unwrap_or(false) {
                continue;
            }
            self.remove_abandoned_in(&directory);
        }
    }

    /// Removes abandoned sockets and locks in one directory. A place that cannot be claimed is in use.
    fn remove_abandoned_in(&self, directory: &Path) {
        let is_own = |name: &str| directory == self.directory && name == self.name;
        let names = paths::entries(directory).unwrap_or_default().into_iter().filter_map(|name| {
            let name = name.into_string().ok()?;
            let name = name.strip_suffix(LOCK).unwrap_or(&name);
            (is_name(name) && !is_own(name)).then(|| name.to_owned())
        });
        // A lock and its socket are two entries.
        for name in names.collect::<BTreeSet<_>>() {
            let place = Self { root: self.root.clone(), directory: directory.to_owned(), name };
            match place.claim_in_directory() {
                Ok(Some(_)) => log::info!("removed {}, which a killed pager left", place.socket().display()),
                Ok(None) => {}
                Err(error) => log::debug!("cannot remove {}: {error}", place.socket().display()),
            }
        }
    }
}

/// Whether a name is `pager-` and the five numbers of [`PagerPlace::of`].
fn is_name(name: &str) -> bool {
    let Some((numbers, nanoseconds)) = name.strip_prefix("pager-").and_then(|rest| rest.split_once('.'))
    else {
        return false;
    };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let numbers: Vec<_> = numbers.split('-').collect();
    numbers.len() == 4 && numbers.into_iter().all(is_number) && is_number(nanoseconds)
}

/// A claimed place. Dropping it removes socket and lock.
#[derive(Debug)]
pub struct Claim {
    lock: PathBuf,
    socket: PathBuf,
    _file: File,
}

impl Claim {
    /// The path for the socket. Removes a socket that a dead pager left.
    ///
    /// # Errors
    /// The old socket cannot be removed.
    pub fn socket(&self) -> Result<&Path> {
        match paths::remove_file(&self.socket) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(Error::file("remove", self.socket.display(), source))
            }
            _ => Ok(&self.socket),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let _ = paths::remove_file(&self.socket);
        let _ = paths::remove_file(&self.lock);
    }
}

/// Makes a directory that only this user can enter, or checks an existing one.
fn private(directory: &Path) -> Result<()> {
    let failed = |source| Error::file("make directory", directory.display(), source);
    let make_and_check = || match paths::make_dir(directory, 0o700) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => Err(source),
        _ => is_private(directory),
    };
    let mut checked = make_and_check();
    for _ in 0..ATTEMPTS {
        // Another process removed the directory between the two calls, or its parent is missing.
        if !matches!(&checked, Err(source) if source.kind() == io::ErrorKind::NotFound) {
            break;
        }
        checked = make_and_check();
    }
    if checked.map_err(failed)? {
        return Ok(());
    }
    let problem =
        format!("{} must be a directory of this user that no other user can enter", directory.display());
    Err(Error::config("pager", problem))
}

/// Whether a path is a directory that only this user can enter.
fn is_private(directory: &Path) -> io::Result<bool> {
    let metadata = paths::metadata_of_link(directory)?;
    let own = metadata.uid() == rustix::process::geteuid().as_raw();
    Ok(metadata.is_dir() && own && metadata.permissions().mode() & 0o077 == 0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::testing::ScratchDir;

    /// A root directory, and the place of a group in it.
    fn groups() -> (ScratchDir, impl Fn(Option<&str>) -> PagerPlace) {
        let scratch = ScratchDir::new();
        let pack = File::open("/proc/self/exe").unwrap();
        let directory = scratch.join("pagers");
        (scratch, move |group| PagerPlace::of(&pack, &directory, group).unwrap())
    }

    #[test]
    fn clean_up_removes_files_of_killed_pagers_and_keeps_directories() {
        let (_root, place) = groups();
        let (starting, cleaning) = (place(Some("a")), place(Some("b")));
        let claim = starting.claim().unwrap().unwrap();
        cleaning.remove_abandoned();
        assert!(starting.is_claimed() && starting.lock_path().exists());
        drop(claim);
        // A killed pager leaves both files.
        for path in [starting.socket(), starting.lock_path()] {
            fs::write(path, "").unwrap();
        }
        place(None).remove_abandoned();
        assert_eq!(fs::read_dir(&starting.directory).unwrap().count(), 0);
    }

    #[test]
    fn pager_claims_its_place_after_its_directory_was_removed() {
        let (_root, place) = groups();
        let starting = place(Some("a"));
        fs::remove_dir(&starting.directory).unwrap();
        assert!(starting.claim().unwrap().is_some());
    }

    #[test]
    fn claim_fails_if_its_directory_cannot_be_made_again() {
        let (root, place) = groups();
        let starting = place(Some("a"));
        fs::remove_dir_all(&*root).unwrap();
        let error = starting.claim().unwrap_err().to_string();
        assert!(error.contains("make directory"), "{error}");
    }
}
