//! The unix socket file of the API: it has mode 0600, replaces no living process's, and is removed at the
//! end.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use volt_vmm::internal::{ListenOptions, paths};

use crate::failure::Failure;

/// A listening socket and its file.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(super) listener: UnixListener,
    file: Arc<SocketFile>,
}

impl Socket {
    /// Listens at `path`. Replaces the socket of a dead process.
    ///
    /// # Errors
    /// A living process serves the path, another kind of file exists there, or the system refuses.
    pub(crate) fn bind(path: &Path) -> Result<Self, Failure> {
        check_address(path)?;
        let options = ListenOptions { is_private: true, ..ListenOptions::default() };
        let listening = paths::listen(None, path, options);
        let (listener, identity) =
            listening.map_err(|error| Failure::socket(path, format!("cannot listen: {error}")))?;
        // From here on, dropping removes the file.
        let file = Arc::new(SocketFile { path: path.to_owned(), identity });
        Ok(Self { listener, file })
    }

    /// Returns the file, for its removal at the end.
    pub(crate) fn file(&self) -> Arc<SocketFile> {
        Arc::clone(&self.file)
    }
}

fn check_address(path: &Path) -> Result<(), Failure> {
    match SocketAddrUnix::new(path) {
        Ok(_) => Ok(()),
        Err(Errno::NAMETOOLONG) => {
            Err(Failure::socket(path, "the path is too long for a unix socket (107 bytes at most)"))
        }
        Err(error) => {
            Err(Failure::socket(path, format!("not a path for a unix socket: {}", io::Error::from(error))))
        }
    }
}

/// The file of a socket. Dropping it removes the file, unless another file has replaced it.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    /// Removes the file. A second call has no effect.
    pub(crate) fn remove(&self) {
        if identity(&self.path).is_ok_and(|found| found == self.identity) {
            let _ = paths::remove_file(&self.path);
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.remove();
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    paths::metadata_of_link(path).map(|found| (found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::super::testing::Dir;
    use super::*;

    #[test]
    fn file_is_private_and_removed_with_the_socket() {
        let dir = Dir::new();
        let path = dir.path("api");
        let socket = Socket::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn living_socket_is_refused_by_its_process() {
        let dir = Dir::new();
        let path = dir.path("api");
        let socket = Socket::bind(&path).unwrap();
        let error = Socket::bind(&path).unwrap_err().to_string();
        assert!(
            error.contains(&format!("another process listens at this path (process {}", std::process::id())),
            "{error}"
        );
        assert!(error.contains(path.to_str().unwrap()), "{error}");
        assert!(path.exists(), "the refused one must not remove the other's file");
        drop(socket);
    }

    #[test]
    fn only_a_stale_socket_is_replaced() {
        let dir = Dir::new();
        let path = dir.path("api");
        drop(UnixListener::bind(&path).unwrap());
        let socket = Socket::bind(&path).unwrap();
        // Someone else's file in its place is not removed.
        fs::remove_file(&path).unwrap();
        fs::write(&path, "precious").unwrap();
        drop(socket);
        assert!(Socket::bind(&path).unwrap_err().to_string().contains("not a socket"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn impossible_path_is_refused() {
        let dir = Dir::new();
        let long = dir.path(&"x".repeat(200));
        assert!(Socket::bind(&long).unwrap_err().to_string().contains("too long"));
        let error = Socket::bind(&dir.path("no/such/dir")).unwrap_err().to_string();
        assert!(error.contains("No such file"), "{error}");
    }

    #[test]
    fn one_of_many_replaces_a_stale_socket() {
        let dir = Dir::new();
        for round in 0..200 {
            let path = dir.path(&round.to_string());
            drop(UnixListener::bind(&path).unwrap());
            let begin = std::sync::Barrier::new(3);
            let open = || {
                begin.wait();
                Socket::bind(&path)
            };
            let bound = std::thread::scope(|scope| {
                [(); 3].map(|()| scope.spawn(open)).map(|thread| thread.join().unwrap())
            });
            assert_eq!(bound.iter().filter(|bound| bound.is_ok()).count(), 1, "{round}: {bound:?}");
            std::os::unix::net::UnixStream::connect(&path).unwrap();
        }
    }
}
