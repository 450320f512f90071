//! The path of a unix socket that a device makes on the host.

use std::ffi::OsStr;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A path, with the directory that was checked for it if a foreign snapshot named it. The socket is made
/// and removed in that directory, even if the path leads elsewhere by then. Serialized as the path alone.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SocketPath {
    path: PathBuf,
    #[serde(skip)]
    directory: Option<Arc<OwnedFd>>,
    #[serde(skip)]
    replaces: bool,
}

impl SocketPath {
    /// A socket `name` in a directory that was checked and is open. `path` is where it was found.
    pub(crate) fn checked(path: PathBuf, directory: OwnedFd) -> Self {
        Self { path, directory: Some(Arc::new(directory)), replaces: false }
    }

    /// Returns the path as it was given.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        &self.path
    }

    /// Returns the directory that was checked for the socket.
    pub(crate) fn directory(&self) -> Option<BorrowedFd<'_>> {
        self.directory.as_deref().map(AsFd::as_fd)
    }

    /// Takes the path from a process that listens there.
    pub(crate) fn replace(&mut self) {
        self.replaces = true;
    }

    /// Whether the path is taken from a process that listens there.
    pub(crate) fn replaces(&self) -> bool {
        self.replaces
    }

    /// Returns the path for system calls.
    pub(crate) fn on_host(&self) -> PathBuf {
        match (&self.directory, self.path.file_name()) {
            (Some(directory), Some(name)) => {
                Path::new(&format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name)
            }
            _ => self.path.clone(),
        }
    }

    /// Returns the path with `suffix` at the end of its name.
    pub(crate) fn with_suffix(&self, suffix: impl AsRef<OsStr>) -> Self {
        let mut path = self.path.clone().into_os_string();
        path.push(suffix);
        Self { path: path.into(), ..self.clone() }
    }
}

impl<T: Into<PathBuf>> From<T> for SocketPath {
    fn from(path: T) -> Self {
        Self { path: path.into(), directory: None, replaces: false }
    }
}

impl PartialEq for SocketPath {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path
    }
}

impl Eq for SocketPath {}

impl fmt::Display for SocketPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(f)
    }
}
