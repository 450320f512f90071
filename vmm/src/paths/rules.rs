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

use super::call::{PagerSocket, PathCall};
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
    /// Real paths of the sockets that the opener made for this process.
    made: Vec<PathBuf>,
    /// Sockets of the pagers that the process may connect to, with their open directories.
    pagers: Vec<(PathBuf, OwnedFd)>,
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

    /// Notes a socket that the opener made.
    pub fn add_made(&mut self, at: Option<BorrowedFd<'_>>, path: &Path, file: (u64, u64)) {
        self.add_own(file);
        let parent = parent_of(at, path).and_then(super::path_of);
        self.made.extend(parent.ok().zip(path.file_name()).map(|(parent, name)| parent.join(name)));
    }

    /// Real paths of the sockets that the opener made.
    pub fn made(&self) -> &[PathBuf] {
        &self.made
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
    pub fn check(&mut self, at: Option<BorrowedFd<'_>>, path: &Path, call: &PathCall) -> io::Result<()> {
        match call {
            // A socket keeps its name: another one could be among those that the opener connects to.
            PathCall::Rename { to, replaces } => {
                refuse_socket(at, path)?;
                if *replaces { refuse_socket(at, &PathBuf::from(to.clone())) } else { Ok(()) }
            }
            PathCall::Link { .. } => refuse_socket(at, path),
            PathCall::Remove { is_directory: false } => self.check_removal(at, path),
            PathCall::Listen(_) if self.is_sealed => Err(ErrorKind::PermissionDenied.into()),
            _ => Ok(()),
        }
    }

    fn check_removal(&mut self, at: Option<BorrowedFd<'_>>, path: &Path) -> io::Result<()> {
        match file_at(at, path) {
            Ok(file) => {
                let found = file.metadata()?;
                let own = self.own.iter().position(|own| *own == (found.dev(), found.ino()));
                if let Some(own) = own {
                    // Another file may get the number.
                    self.own.swap_remove(own);
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
        let Ok(parent) = parent_of(None, &path) else { return };
        if !self.is_sealed && self.check_bounds(&parent).is_ok() {
            self.pagers.push((path, parent));
        }
    }

    /// Returns the place of a pager's socket, with the directory that it had when it was allowed. A memory
    /// handler is reached once: a VM that lost it gets no other.
    ///
    /// # Errors
    /// It was not allowed.
    pub fn place_of_pager(&mut self, path: &Path, kind: PagerSocket) -> io::Result<(PathBuf, OwnedFd)> {
        let known = self.pagers.iter().rposition(|(known, _)| known == path);
        let known = known.ok_or(ErrorKind::PermissionDenied)?;
        let (path, parent) = match kind {
            PagerSocket::Packets => (self.pagers[known].0.clone(), self.pagers[known].1.try_clone()?),
            PagerSocket::Stream => self.pagers.swap_remove(known),
        };
        Ok((in_directory(&parent, &path).unwrap_or(path), parent))
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

/// The path of the file's name in an open directory. It is absent if the path has no name, or the process no
/// `/proc`.
fn in_directory(directory: &OwnedFd, path: &Path) -> Option<PathBuf> {
    let place = super::own_path(directory);
    let is_there = std::fs::symlink_metadata(&place).is_ok();
    path.file_name().filter(|_| is_there).map(|name| place.join(name))
}

/// A call on names, whose directories are open: another process cannot exchange them between check and act.
pub(super) struct Pinned {
    pub path: PathBuf,
    pub call: PathCall,
    _directories: Vec<OwnedFd>,
}

impl Pinned {
    /// Opens the directories of a call that moves or removes a name.
    ///
    /// # Errors
    /// As openat(2).
    pub fn new(at: Option<BorrowedFd<'_>>, path: PathBuf, call: PathCall) -> io::Result<Self> {
        let mut directories = Vec::new();
        let mut pin = |path: PathBuf| {
            let parent = parent_of(at, &path)?;
            let pinned = in_directory(&parent, &path);
            directories.push(parent);
            Ok::<_, io::Error>(pinned.unwrap_or(path))
        };
        let (path, call) = match call {
            PathCall::Rename { to, replaces } => {
                let to = pin(to.into())?.as_path().into();
                (pin(path)?, PathCall::Rename { to, replaces })
            }
            PathCall::Link { to } => {
                let to = pin(to.into())?.as_path().into();
                (pin(path)?, PathCall::Link { to })
            }
            PathCall::Remove { is_directory } => (pin(path)?, PathCall::Remove { is_directory }),
            other => (path, other),
        };
        Ok(Self { path, call, _directories: directories })
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
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(at.unwrap_or(CWD), directory_of(path), flags, Mode::empty())?)
}

/// The path of the directory of a name.
pub(crate) fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
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
        let mut check = |path: &Path, call| kind(rules.check(None, path, &call));
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
        assert_eq!(kind(rules.check(None, &socket, &removal())), forbidden, "it was removed once");
        let dead = scratch.join("dead");
        drop(UnixListener::bind(&dead).unwrap());
        assert_eq!(kind(rules.check(None, &dead, &removal())), Ok(()));
    }

    #[test]
    fn directories_of_a_pinned_call_cannot_be_exchanged() {
        let scratch = ScratchDir::new();
        let [run, other] = ["run", "other"].map(|name| scratch.join(name));
        for directory in [&run, &other] {
            fs::create_dir(directory).unwrap();
            fs::write(directory.join("file"), directory.to_str().unwrap()).unwrap();
        }
        let call = PathCall::Rename { to: scratch.join("moved").as_path().into(), replaces: false };
        let pinned = Pinned::new(None, run.join("file"), call).unwrap();
        fs::rename(&run, scratch.join("away")).unwrap();
        fs::rename(&other, &run).unwrap();
        pinned.call.make(None, &pinned.path).unwrap();
        assert_eq!(fs::read_to_string(scratch.join("moved")).unwrap(), run.to_str().unwrap());
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
        let place_of_pager = |rules: &mut Rules, directory: &Path| {
            rules.place_of_pager(&directory.join("pager"), PagerSocket::Packets)
        };
        let mut rules = Rules::new(Some(&bounds));
        assert_eq!(kind(rules.check(None, &outside.join("file"), &removal())), Ok(()));
        rules.allow_pager(outside.join("pager"));
        rules.seal();
        rules.allow_pager(inside.join("pager"));
        let forbidden = Err(ErrorKind::PermissionDenied);
        assert_eq!(kind(rules.check(None, &outside.join("file"), &removal())), forbidden);
        assert_eq!(kind(rules.check(None, &inside.join("file"), &removal())), Ok(()));
        assert_eq!(kind(place_of_pager(&mut rules, &outside)), Ok(()));
        assert_eq!(kind(place_of_pager(&mut rules, &inside)), forbidden);
        let mut rules = Rules::new(Some(&Bounds { from_start: true, ..bounds }));
        assert_eq!(kind(rules.allow(None, &outside.join("vsock"))), forbidden);
        rules.allow_pager(outside.join("pager"));
        assert_eq!(kind(place_of_pager(&mut rules, &outside)), forbidden);
        rules.allow(None, &inside.join("vsock")).unwrap();
    }

    #[test]
    fn pager_is_reached_again_and_a_memory_handler_once() {
        let scratch = ScratchDir::new();
        let path = scratch.join("socket");
        for (socket, again) in
            [(PagerSocket::Packets, Ok(())), (PagerSocket::Stream, Err(ErrorKind::PermissionDenied))]
        {
            let mut rules = Rules::new(None);
            rules.allow_pager(path.clone());
            rules.seal();
            assert_eq!(kind(rules.place_of_pager(&path, socket)), Ok(()));
            assert_eq!(kind(rules.place_of_pager(&path, socket)), again);
        }
    }
}
