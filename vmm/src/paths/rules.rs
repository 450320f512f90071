//! The opener's rules: the calls that it makes, and the sockets that it connects to.
//!
//! An attacker who took over the VM's process can ask the opener for any call. These rules keep them from the
//! sockets of other VMs. Landlock keeps the opener from files outside [`Bounds`], if there are any.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};
use serde::{Deserialize, Serialize};

use super::call::PathCall;
use crate::sockets::connect_to_file;

/// The files that the opener may open once the guest runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// Directories in which everything is allowed.
    pub directories: Vec<PathBuf>,
    /// Files, and directories with all that is in them, that may be read.
    pub readable: Vec<PathBuf>,
    /// Files that may be read and written.
    pub writable: Vec<PathBuf>,
    /// Sockets at which this process listens. They are removed at the end.
    pub sockets: Vec<PathBuf>,
    /// Whether they hold from the start. Otherwise they hold once the guest runs, and what is opened before
    /// is not bounded.
    pub from_start: bool,
}

/// The rules of an opener.
#[derive(Debug, Default)]
pub(super) struct Rules {
    /// The real paths of [`Bounds::directories`], if the opener has bounds.
    directories: Option<Vec<PathBuf>>,
    /// Whether the bounds hold.
    are_bounds_closed: bool,
    /// Whether the guest runs.
    is_sealed: bool,
    /// Directories and names before `_N` of the sockets that a device may connect to.
    connectable: Vec<(OwnedFd, PathBuf)>,
    /// Devices and inodes of the sockets at which this process listens.
    own: Vec<(u64, u64)>,
    /// Sockets of the pagers that the process may connect to.
    pagers: Vec<PathBuf>,
}

impl Rules {
    pub fn new(bounds: Option<&Bounds>) -> Self {
        let real = |directory: &PathBuf| std::fs::canonicalize(directory).ok();
        Self {
            directories: bounds.map(|bounds| bounds.directories.iter().filter_map(real).collect()),
            are_bounds_closed: bounds.is_some_and(|bounds| bounds.from_start),
            ..Self::default()
        }
    }

    /// Allows no further sockets from now on, and closes the bounds.
    pub fn seal(&mut self) {
        self.is_sealed = true;
        self.are_bounds_closed = true;
    }

    /// Notes a socket at which this process listens. It may be removed.
    pub fn add_own(&mut self, file: (u64, u64)) {
        if !self.is_sealed {
            self.own.push(file);
        }
    }

    /// Allows connections to `path_N`. Returns the path's number.
    ///
    /// # Errors
    /// The guest runs; or the directory cannot be opened, or is outside the bounds of a process that has them
    /// from the start.
    pub fn allow(&mut self, directory: Option<OwnedFd>, path: &Path) -> io::Result<usize> {
        if self.is_sealed {
            return Err(ErrorKind::PermissionDenied.into());
        }
        let directory = directory.map_or_else(|| parent_of(None, path), Ok)?;
        self.check_bounds(&directory)?;
        let name = path.file_name().ok_or(ErrorKind::InvalidInput)?;
        // A directory that is renamed later stays this one.
        self.connectable.push((directory, name.into()));
        Ok(self.connectable.len() - 1)
    }

    /// Connects to `path_port` for the path with this number.
    ///
    /// # Errors
    /// As [`connect_to_file`]; or no path has the number.
    pub fn connect(&self, number: usize, port: u32) -> io::Result<UnixStream> {
        let (directory, name) = self.connectable.get(number).ok_or(ErrorKind::PermissionDenied)?;
        let mut name = name.clone().into_os_string();
        name.push(format!("_{port}"));
        connect_to_file(Some(directory.as_fd()), Path::new(&name))
    }

    /// Checks a call before it is made.
    ///
    /// # Errors
    /// It is not allowed, or its files cannot be examined.
    pub fn check(&self, at: Option<BorrowedFd<'_>>, path: &Path, call: &PathCall) -> io::Result<()> {
        match call {
            // A socket keeps its name: another one could be among those that the opener connects to.
            PathCall::Rename { to, replaces } => {
                refuse_socket(at, path)?;
                if *replaces { refuse_socket(at, &PathBuf::from(to.clone())) } else { Ok(()) }
            }
            PathCall::Link { .. } => refuse_socket(at, path),
            PathCall::Remove { is_directory: false } => self.check_removal(at, path),
            PathCall::Listen(_) if self.is_sealed => Err(ErrorKind::PermissionDenied.into()),
            PathCall::ConnectToPager if !self.pagers.iter().any(|known| known == path) => {
                Err(ErrorKind::PermissionDenied.into())
            }
            _ => Ok(()),
        }
    }

    fn check_removal(&self, at: Option<BorrowedFd<'_>>, path: &Path) -> io::Result<()> {
        match file_at(at, path) {
            Ok(file) => {
                let found = file.metadata()?;
                if self.own.contains(&(found.dev(), found.ino())) {
                    return Ok(());
                }
                if found.file_type().is_socket() && !is_dead(at, path) {
                    return Err(ErrorKind::PermissionDenied.into());
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        // The bounds allow the removal of names beside own sockets.
        self.check_bounds(&parent_of(at, path)?)
    }

    /// Allows connections to a pager, unless the guest runs, or the bounds hold and it is outside.
    pub fn allow_pager(&mut self, path: PathBuf) {
        let is_within = || parent_of(None, &path).is_ok_and(|parent| self.check_bounds(&parent).is_ok());
        if !self.is_sealed && is_within() {
            self.pagers.push(path);
        }
    }

    /// Refuses a directory outside the bounds, if they hold.
    fn check_bounds(&self, directory: &OwnedFd) -> io::Result<()> {
        let Some(allowed) = self.directories.as_ref().filter(|_| self.are_bounds_closed) else {
            return Ok(());
        };
        let real = super::path_of(directory)?;
        let is_within = allowed.iter().any(|allowed| real.starts_with(allowed));
        if is_within { Ok(()) } else { Err(ErrorKind::PermissionDenied.into()) }
    }
}

/// Opens a file, or a link itself, to examine it.
fn file_at(at: Option<BorrowedFd<'_>>, path: &Path) -> io::Result<File> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(at.unwrap_or(CWD), path, flags, Mode::empty())?.into())
}

/// Whether no process listens at a socket any more.
fn is_dead(at: Option<BorrowedFd<'_>>, path: &Path) -> bool {
    let connected = parent_of(at, path).and_then(|parent| connect_to_file(Some(parent.as_fd()), path));
    connected.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

fn refuse_socket(at: Option<BorrowedFd<'_>>, path: &Path) -> io::Result<()> {
    match file_at(at, path) {
        Ok(file) if file.metadata()?.file_type().is_socket() => Err(ErrorKind::PermissionDenied.into()),
        Ok(_) => Ok(()),
        // The call itself tells that.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Opens the directory of a name.
fn parent_of(at: Option<BorrowedFd<'_>>, path: &Path) -> io::Result<OwnedFd> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(at.unwrap_or(CWD), parent, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::testing::ScratchDir;

    fn kind(result: io::Result<impl Sized>) -> Result<(), ErrorKind> {
        result.map(drop).map_err(|error| error.kind())
    }

    #[test]
    fn sealed_opener_connects_to_allowed_sockets_alone() {
        let scratch = ScratchDir::new();
        let listener = UnixListener::bind(scratch.join("vsock_52")).unwrap();
        let _other = UnixListener::bind(scratch.join("api.sock")).unwrap();
        let mut rules = Rules::default();
        assert_eq!(rules.allow(None, &scratch.join("vsock")).unwrap(), 0);
        rules.seal();
        assert_eq!(kind(rules.allow(None, &scratch.join("api.sock"))), Err(ErrorKind::PermissionDenied));
        assert_eq!(kind(rules.connect(1, 52)), Err(ErrorKind::PermissionDenied));
        assert_eq!(kind(rules.connect(0, 53)), Err(ErrorKind::NotFound));
        rules.connect(0, 52).unwrap();
        listener.accept().unwrap();
    }

    #[test]
    fn directory_of_allowed_sockets_stays_the_one_that_was_allowed() {
        let scratch = ScratchDir::new();
        let [run, other] = ["run", "other"].map(|name| scratch.join(name));
        for directory in [&run, &other] {
            fs::create_dir(directory).unwrap();
        }
        let _others = UnixListener::bind(other.join("v_1")).unwrap();
        let mut rules = Rules::default();
        rules.allow(None, &run.join("v")).unwrap();
        fs::rename(&run, scratch.join("moved")).unwrap();
        fs::rename(&other, &run).unwrap();
        assert_eq!(kind(rules.connect(0, 1)), Err(ErrorKind::NotFound));
    }

    #[test]
    fn sockets_of_others_are_neither_renamed_nor_linked_nor_removed() {
        let scratch = ScratchDir::new();
        let [socket, file] = ["other.sock", "file"].map(|name| scratch.join(name));
        let _listener = UnixListener::bind(&socket).unwrap();
        fs::write(&file, "").unwrap();
        let mut rules = Rules::default();
        let rename = |to: &Path, replaces| PathCall::Rename { to: to.into(), replaces };
        let to = scratch.join("vsock_1");
        let forbidden = Err(ErrorKind::PermissionDenied);
        let check = |path: &Path, call| kind(rules.check(None, path, &call));
        assert_eq!(check(&socket, rename(&to, false)), forbidden);
        assert_eq!(check(&file, rename(&socket, true)), forbidden);
        assert_eq!(check(&file, rename(&to, true)), Ok(()));
        assert_eq!(check(&socket, PathCall::Link { to: to.as_path().into() }), forbidden);
        let removal = || PathCall::Remove { is_directory: false };
        assert_eq!(check(&socket, removal()), forbidden);
        assert_eq!(check(&file, removal()), Ok(()));
        let found = fs::metadata(&socket).unwrap();
        rules.add_own((found.dev(), found.ino()));
        assert_eq!(kind(rules.check(None, &socket, &removal())), Ok(()));
        let dead = scratch.join("dead");
        drop(UnixListener::bind(&dead).unwrap());
        assert_eq!(kind(rules.check(None, &dead, &removal())), Ok(()));
    }

    #[test]
    fn bounds_hold_once_the_guest_runs_or_from_the_start() {
        let scratch = ScratchDir::new();
        let [inside, outside] = ["inside", "outside"].map(|name| scratch.join(name));
        for directory in [&inside, &outside] {
            fs::create_dir(directory).unwrap();
        }
        let bounds = Bounds { directories: vec![inside.clone()], ..Bounds::default() };
        let removal = || PathCall::Remove { is_directory: false };
        let mut rules = Rules::new(Some(&bounds));
        assert_eq!(kind(rules.check(None, &outside.join("file"), &removal())), Ok(()));
        rules.allow_pager(outside.join("pager"));
        rules.seal();
        rules.allow_pager(inside.join("new"));
        let forbidden = Err(ErrorKind::PermissionDenied);
        assert_eq!(kind(rules.check(None, &outside.join("file"), &removal())), forbidden);
        assert_eq!(kind(rules.check(None, &inside.join("file"), &removal())), Ok(()));
        assert_eq!(kind(rules.check(None, &outside.join("pager"), &PathCall::ConnectToPager)), Ok(()));
        assert_eq!(kind(rules.check(None, &inside.join("new"), &PathCall::ConnectToPager)), forbidden);
        let mut rules = Rules::new(Some(&Bounds { from_start: true, ..bounds }));
        assert_eq!(kind(rules.allow(None, &outside.join("vsock"))), forbidden);
        rules.allow_pager(outside.join("pager"));
        assert_eq!(kind(rules.check(None, &outside.join("pager"), &PathCall::ConnectToPager)), forbidden);
        rules.allow(None, &inside.join("vsock")).unwrap();
    }
}
