//! Where pagers are found: a socket for each pack in a directory that only this user can enter.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use crate::error::{Error, Result, report};

/// The directory, unless another one is named.
#[must_use]
pub fn default_directory() -> PathBuf {
    let own = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty());
    own.map_or_else(|| PathBuf::from("/run"), PathBuf::from).join("volt-vmm")
}

/// Bytes of a group's name: the path of a socket must be short.
const LONGEST_GROUP: usize = 32;
/// Bytes of the path of a socket (unix(7)).
const LONGEST_PATH: usize = 107;
/// How the name of a place's lock ends.
const LOCK: &str = ".lock";

/// The place of the pager of one pack.
#[derive(Clone, Debug)]
pub struct Place {
    directory: PathBuf,
    name: String,
}

impl Place {
    /// That of the pack in `file`, in a directory that is made if it is not there. A file that is changed or replaced has another
    /// place: this is of what the file system says of it, and nothing that is in it. A trust group has a
    /// directory of its own in that one, so that a VM that is confined to it reaches no other group's pager.
    ///
    /// # Errors
    /// The group's name is none, the socket's path is too long, or the directory cannot be made, or others
    /// can enter it.
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
            let place = Self { directory: directory.to_owned(), name };
            place.check_length()?;
            private(directory)?;
            return Ok(place);
        };
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if group.is_empty() || group.len() > LONGEST_GROUP || !group.bytes().all(is_name) {
            let problem = format!("{group:?} must be 1 to {LONGEST_GROUP} letters, digits, - or _");
            return Err(Error::config("pager_group", problem));
        }
        let place = Self { directory: directory.join(format!("group-{group}")), name };
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
            "the path of its socket, {}, is {len} bytes long, and may be {LONGEST_PATH}: choose a shorter directory",
            socket.display()
        );
        Err(Error::config("pager", problem))
    }

    /// Where its socket is.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.directory.join(&self.name)
    }

    /// Whether somebody has claimed it: a pager that is there, or one that is about to be.
    #[must_use]
    pub fn is_claimed(&self) -> bool {
        // To look is to have a shared claim for a moment.
        File::open(self.lock_path()).is_ok_and(|file| {
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared)
                == Err(rustix::io::Errno::WOULDBLOCK)
        })
    }

    fn lock_path(&self) -> PathBuf {
        self.directory.join(format!("{}{LOCK}", self.name))
    }

    /// Claims the place, until what is returned is dropped; nothing if somebody else has it.
    ///
    /// # Errors
    /// The host refuses a file for it.
    pub fn claim(&self) -> Result<Option<Claim>> {
        let path = self.lock_path();
        let failed = |source: io::Error| Error::file("claim", path.display(), source);
        loop {
            let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
            let mut options = File::options();
            let file = options.create(true).truncate(false).write(true).mode(0o600).custom_flags(flags);
            let file = file.open(&path).map_err(failed)?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                other => other.map_err(|errno| failed(errno.into()))?,
            }
            // Whoever had it before may have removed it between the two.
            let inode = file.metadata().map_err(failed)?.ino();
            if fs::metadata(&path).is_ok_and(|there| there.ino() == inode) {
                return Ok(Some(Claim { lock: path, socket: self.socket(), _file: file }));
            }
        }
    }

    /// Removes what is left of the other places in this directory: sockets and locks of pagers that were
    /// killed. A place that cannot be claimed is in use.
    pub fn remove_abandoned(&self) {
        let Ok(entries) = fs::read_dir(&self.directory) else { return };
        let names = entries.flatten().filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let name = name.strip_suffix(LOCK).unwrap_or(&name);
            (is_name(name) && name != self.name).then(|| name.to_owned())
        });
        // Its lock and its socket are two entries.
        for name in names.collect::<BTreeSet<_>>() {
            let place = Self { directory: self.directory.clone(), name };
            match place.claim() {
                Ok(Some(_)) => log::info!("removed {}, which a killed pager left", place.socket().display()),
                Ok(None) => {}
                Err(error) => log::debug!("{} stays: {}", place.socket().display(), report(&error)),
            }
        }
    }
}

/// `pager-` and the five numbers of [`Place::of`].
fn is_name(name: &str) -> bool {
    let Some((numbers, nanoseconds)) = name.strip_prefix("pager-").and_then(|rest| rest.split_once('.'))
    else {
        return false;
    };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let numbers: Vec<_> = numbers.split('-').collect();
    numbers.len() == 4 && numbers.into_iter().all(is_number) && is_number(nanoseconds)
}

/// A claimed place. Dropped, nothing is left of it.
#[derive(Debug)]
pub struct Claim {
    lock: PathBuf,
    socket: PathBuf,
    _file: File,
}

impl Claim {
    /// Where the socket belongs. None is there: one that a dead pager left is removed.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn socket(&self) -> Result<&Path> {
        match fs::remove_file(&self.socket) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(Error::file("remove", self.socket.display(), source))
            }
            _ => Ok(&self.socket),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.socket);
        let _ = fs::remove_file(&self.lock);
    }
}

/// Sees to it that there is such a directory, and that it is this user's alone.
fn private(directory: &Path) -> Result<()> {
    let failed = |source| Error::file("make directory", directory.display(), source);
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => return Err(failed(source)),
        _ => {}
    }
    let metadata = fs::symlink_metadata(directory).map_err(failed)?;
    let own = metadata.uid() == rustix::process::geteuid().as_raw();
    if metadata.is_dir() && own && metadata.permissions().mode() & 0o077 == 0 {
        return Ok(());
    }
    let problem =
        format!("{} must be a directory of this user's that nobody else can enter", directory.display());
    Err(Error::config("pager", problem))
}
