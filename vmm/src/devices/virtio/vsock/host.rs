//! The host's sockets: the one that leads into the guest, and those that the guest connects to.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use crate::config::SocketPath;
use crate::devices::virtio::listener::Listener;
use crate::error::{Error, Result};
use crate::paths::opener;
use crate::sockets::connect_to_file;

/// The socket where host programs connect to the guest.
#[derive(Debug)]
pub(super) struct HostSocket {
    listener: Listener,
    /// The path's number at the opener, if the process has one.
    opener: Option<usize>,
}

impl HostSocket {
    /// Listens at `path`, in place of an abandoned socket file.
    ///
    /// # Errors
    /// Another file has the name, another process listens there, or the directory is closed to this user. Or
    /// the opener takes no more paths.
    pub fn listen(path: &SocketPath) -> Result<Self> {
        let listener = Listener::open("listen at vsock socket", path)?;
        let allow = || opener::allow(path.directory(), path.as_path());
        let opener = opener::is_running().then(allow).transpose();
        let opener = opener.map_err(|source| Error::file("allow connections beside", path, source))?;
        Ok(Self { listener, opener })
    }

    /// Removes the socket's file.
    pub fn remove_file(&self) {
        self.listener.remove_file();
    }

    /// Accepts the next host program, if one waits.
    pub fn accept(&self) -> io::Result<Option<UnixStream>> {
        self.listener.accept()
    }

    /// Connects to the program that listens for the guest at `port`, unless its queue is full.
    ///
    /// # Errors
    /// As [`connect_to_file`].
    pub fn connect(&self, port: u32) -> io::Result<UnixStream> {
        if let Some(number) = self.opener {
            return opener::connect(number, port);
        }
        let path = self.listener.path().with_suffix(format!("_{port}"));
        connect_to_file(path.directory(), path.as_path())
    }
}

impl AsFd for HostSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::testing::ScratchDir;

    #[test]
    fn abandoned_socket_is_replaced_and_removed_on_drop() {
        let dir = ScratchDir::new();
        let path = dir.join("vsock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let host = HostSocket::listen(&path.clone().into()).unwrap();
        UnixStream::connect(&path).unwrap();
        drop(host);
        assert!(!path.exists());
    }

    #[test]
    fn socket_in_use_is_refused_by_name_and_stays() {
        let dir = ScratchDir::new();
        let path = dir.join("vsock");
        let _first = HostSocket::listen(&path.clone().into()).unwrap();
        let error = HostSocket::listen(&path.clone().into()).unwrap_err();
        assert_eq!(error.to_string(), format!("cannot listen at vsock socket {}", path.display()));
        UnixStream::connect(&path).unwrap();

        let file = dir.join("no socket");
        fs::write(&file, "precious").unwrap();
        HostSocket::listen(&file.clone().into()).unwrap_err();
        assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    }

    #[test]
    fn link_to_another_socket_is_not_followed() {
        let dir = ScratchDir::new();
        let host = HostSocket::listen(&dir.join("vsock").into()).unwrap();
        let daemon = UnixListener::bind(dir.join("daemon")).unwrap();
        daemon.set_nonblocking(true).unwrap();
        std::os::unix::fs::symlink("daemon", dir.join("vsock_1")).unwrap();
        let error = host.connect(1).unwrap_err().to_string();
        assert!(error.ends_with("vsock_1 is a link or not a socket; links are not followed"), "{error}");
        fs::hard_link(dir.join("daemon"), dir.join("vsock_2")).unwrap();
        host.connect(2).unwrap_err();
        assert_eq!(daemon.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let own = UnixListener::bind(dir.join("vsock_3")).unwrap();
        host.connect(3).unwrap();
        own.accept().unwrap();
        drop(own);
        assert_eq!(host.connect(3).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(host.connect(4).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn name_taken_over_by_another_socket_stays() {
        let dir = ScratchDir::new();
        let path = dir.join("vsock");
        let first = HostSocket::listen(&path.clone().into()).unwrap();
        fs::remove_file(&path).unwrap();
        let _second = HostSocket::listen(&path.clone().into()).unwrap();
        drop(first);
        assert!(path.exists());
    }
}
