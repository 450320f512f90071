//! The unix socket file of the API: it has mode 0600, replaces no living process's, and is removed at the
//! end.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use volt_vmm::internal::{lock_directory_of, paths};

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
        let refused =
            |error: Errno| Failure::socket(path, format!("cannot listen: {}", io::Error::from(error)));
        let address = address(path)?;
        let socket = stream_socket().map_err(refused)?;
        // The file gets the mode that the socket has when it is bound, so it is never open to others.
        fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(refused)?;
        let _lock = lock_directory_of(path);
        match bind(&socket, &address) {
            Err(Errno::ADDRINUSE) => {
                refuse_unless_stale(path, &address)?;
                fs::remove_file(path).map_err(|error| {
                    Failure::socket(
                        path,
                        format!("cannot remove the socket that a dead process left: {error}"),
                    )
                })?;
                bind(&socket, &address).map_err(refused)?;
            }
            bound => bound.map_err(refused)?,
        }
        // From here on, dropping removes the file.
        let file = Arc::new(SocketFile::of(path)?);
        listen(&socket, 64).map_err(refused)?;
        Ok(Self { listener: socket.into(), file })
    }

    /// Returns the file, for its removal at the end.
    pub(crate) fn file(&self) -> Arc<SocketFile> {
        Arc::clone(&self.file)
    }
}

fn address(path: &Path) -> Result<SocketAddrUnix, Failure> {
    SocketAddrUnix::new(path).map_err(|error| match error {
        Errno::NAMETOOLONG => {
            Failure::socket(path, "the path is too long for a unix socket (107 bytes at most)")
        }
        _ => Failure::socket(path, format!("not a path for a unix socket: {}", io::Error::from(error))),
    })
}

// Non-blocking, for tokio, and since a peer that does not accept must not block the probe.
fn stream_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

fn refuse_unless_stale(path: &Path, address: &SocketAddrUnix) -> Result<(), Failure> {
    if !fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        return Err(Failure::socket(
            path,
            "the path exists and is not a socket; remove it or choose another path",
        ));
    }
    let probe = stream_socket().map_err(|error| Failure::system("create a socket", error))?;
    let problem = match connect(&probe, address) {
        Err(Errno::CONNREFUSED) => return Ok(()),
        Ok(()) => match socket_peercred(&probe) {
            Ok(peer) => format!("in use by process {}", peer.pid.as_raw_nonzero()),
            Err(_) => "in use by another process".into(),
        },
        Err(Errno::AGAIN) => "in use by another process, which does not answer".into(),
        Err(error) => format!(
            "the socket exists, but it is unknown whether a process uses it: {}",
            io::Error::from(error)
        ),
    };
    Err(Failure::socket(path, problem))
}

/// The file of a socket. Dropping it removes the file, unless another file has replaced it.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    fn of(path: &Path) -> Result<Self, Failure> {
        let identity = identity(path).map_err(|error| {
            // The lock on the directory is still held, so the file is the one that was just bound.
            let _ = fs::remove_file(path);
            Failure::socket(path, format!("cannot read the metadata of the bound socket: {error}"))
        })?;
        Ok(Self { path: path.to_owned(), identity })
    }

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
        assert!(error.contains(&format!("in use by process {}", std::process::id())), "{error}");
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
