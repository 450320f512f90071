//! A unix socket of the host where others connect to a device. Its file exists as long as it listens. A stale
//! file is replaced; a file at which another process listens is an error.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use crate::config::SocketPath;
use crate::error::{Error, Result};
use crate::paths;
use crate::sockets::ListenOptions;

/// A listening socket. Dropping it removes its file.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    path: SocketPath,
    /// Device and inode of the file. Another process may have replaced the file by the time it is removed.
    file: (u64, u64),
}

impl Listener {
    /// Path of the socket.
    #[must_use]
    pub fn path(&self) -> &SocketPath {
        &self.path
    }

    /// Listens at `path`, for this user alone. `act` is the act that an error names, such as `listen at`.
    ///
    /// # Errors
    /// Another process listens there, the file is not a socket, or the host refuses.
    pub fn open(act: &'static str, path: &SocketPath) -> Result<Self> {
        let options = ListenOptions { is_private: true, replaces: path.replaces() };
        let listening = paths::listen(path.directory(), path.as_path(), options);
        let (socket, file) = listening.map_err(|source| Error::file(act, path, source))?;
        Ok(Self { socket, path: path.clone(), file })
    }

    /// Removes the file, unless another file has replaced it. A second call has no effect.
    pub fn remove_file(&self) {
        let on_host = self.path.on_host();
        if identity(&on_host).is_ok_and(|file| file == self.file) {
            // A file that cannot be removed stays, and the next listener replaces it.
            let _ = paths::remove_file(&on_host);
        }
    }

    /// Accepts the first waiting connection, if there is one. Neither this call nor the stream blocks.
    ///
    /// # Errors
    /// The host has no descriptor left: the connection keeps waiting.
    pub fn accept(&self) -> io::Result<Option<UnixStream>> {
        loop {
            match self.socket.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(true)?;
                    return Ok(Some(stream));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                // The call was interrupted, or the client went away before it was accepted.
                Err(error)
                    if [io::ErrorKind::Interrupted, io::ErrorKind::ConnectionAborted]
                        .contains(&error.kind()) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.remove_file();
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let file = paths::metadata_of_link(path)?;
    Ok((file.dev(), file.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::report;
    use crate::testing::{ScratchDir, apart, refuse_calls};

    #[test]
    fn stale_socket_is_replaced_and_removed_at_the_end() {
        let scratch = ScratchDir::new();
        let path = scratch.join("stale");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let listener = Listener::open("listen at", &path.clone().into()).unwrap();
        assert!(listener.accept().unwrap().is_none());
        let _client = UnixStream::connect(&path).unwrap();
        assert!(listener.accept().unwrap().is_some());
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn socket_is_its_users_alone() {
        let scratch = ScratchDir::new();
        let path = scratch.join("private");
        let _listener = Listener::open("listen at", &path.clone().into()).unwrap();
        assert_eq!(std::fs::symlink_metadata(&path).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn file_in_use_or_without_a_socket_is_refused_and_kept() {
        let scratch = ScratchDir::new();
        let path = scratch.join("used");
        let listener = Listener::open("listen at", &path.clone().into()).unwrap();
        let error = report(&Listener::open("listen at", &path.clone().into()).unwrap_err());
        let holder = format!(
            "cannot listen at {}: another process listens at this path (process {}: ",
            path.display(),
            std::process::id()
        );
        assert!(error.starts_with(&holder), "{error}");
        assert!(UnixStream::connect(&path).is_ok());
        // Another process puts a file in its place, which the listener must not remove.
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "precious").unwrap();
        drop(listener);
        let error = report(&Listener::open("listen at", &path.clone().into()).unwrap_err());
        assert!(
            error.ends_with(
                "a file that is not a socket exists at this path; remove the file or choose another path"
            ),
            "{error}"
        );
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn path_is_taken_from_a_listener_whose_end_leaves_it() {
        let scratch = ScratchDir::new();
        let path = SocketPath::from(scratch.join("used"));
        let first = Listener::open("listen at", &path).unwrap();
        let mut taken = path.clone();
        taken.replace();
        let second = Listener::open("listen at", &taken).unwrap();
        drop(first);
        let _client = UnixStream::connect(path.as_path()).unwrap();
        assert!(second.accept().unwrap().is_some());
        // A file that is no socket is not replaced.
        drop(second);
        std::fs::write(path.as_path(), "precious").unwrap();
        Listener::open("listen at", &taken).unwrap_err();
        assert_eq!(std::fs::read_to_string(path.as_path()).unwrap(), "precious");
    }

    /// A second listener could find the first one's socket bound and not yet listening, or remove a file that
    /// was stale and is now another's.
    #[test]
    fn one_of_two_simultaneous_listeners_replaces_a_stale_socket() {
        let place = ScratchDir::new();
        for round in 0..200 {
            let path = place.join(round.to_string());
            drop(UnixListener::bind(&path).unwrap());
            let begin = std::sync::Barrier::new(3);
            let open = || {
                begin.wait();
                Listener::open("listen at", &path.clone().into())
            };
            let opened = std::thread::scope(|scope| {
                [(); 3].map(|()| scope.spawn(open)).map(|thread| thread.join().unwrap())
            });
            assert_eq!(opened.iter().filter(|opened| opened.is_ok()).count(), 1, "{round}: {opened:?}");
            UnixStream::connect(&path).unwrap();
        }
    }

    #[test]
    fn socket_that_cannot_be_examined_is_removed() {
        apart(|| {
            let scratch = ScratchDir::new();
            let path = scratch.join("vsock");
            refuse_calls(&[libc::SYS_lstat, libc::SYS_newfstatat, libc::SYS_statx], libc::EIO);
            Listener::open("listen at", &path.clone().into()).unwrap_err();
            let left = std::fs::read_dir(&*scratch).unwrap().count();
            assert_eq!(left, 0, "a socket is left");
        });
    }

    #[test]
    fn hard_link_of_a_socket_is_neither_replaced_nor_connected() {
        let scratch = ScratchDir::new();
        let (own, daemons) = (scratch.join("own"), scratch.join("daemon"));
        let daemon = UnixListener::bind(&daemons).unwrap();
        daemon.set_nonblocking(true).unwrap();
        std::fs::hard_link(&daemons, &own).unwrap();
        let error = report(&Listener::open("listen at", &own.clone().into()).unwrap_err());
        assert!(error.contains("is a link or not a socket"), "{error}");
        assert_eq!(daemon.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
