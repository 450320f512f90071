//! The host's side: the socket that leads into the guest, and those that the guest reaches.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use crate::config::SocketPath;
use crate::devices::virtio::listener::{Listener, connect_to_file};
use crate::error::Result;

/// The socket where programs of the host connect to the guest.
#[derive(Debug)]
pub(super) struct Host(Listener);

impl Host {
    /// Listens at `path`, in place of a socket file that nobody listens at any more.
    ///
    /// # Errors
    /// Something else has the name, or the directory is closed to this user.
    pub fn listen(path: &SocketPath) -> Result<Self> {
        Listener::open("listen at vsock socket", path).map(Self)
    }

    /// The next program of the host that wants something, if one does.
    pub fn accept(&self) -> io::Result<Option<UnixStream>> {
        self.0.accept()
    }

    /// Connects to whoever listens for the guest at `port`. One whose queue is full does not.
    ///
    /// # Errors
    /// As [`connect_to_file`].
    pub fn connect(&self, port: u32) -> io::Result<UnixStream> {
        connect_to_file(&self.0.path().with_suffix(format!("_{port}")))
    }
}

impl AsFd for Host {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::net::UnixListener;

    use super::super::testing::TempDir;
    use super::*;

    #[test]
    fn an_abandoned_socket_is_replaced_and_ours_goes_with_us() {
        let dir = TempDir::new();
        let path = dir.join("vsock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let host = Host::listen(&path.clone().into()).unwrap();
        UnixStream::connect(&path).unwrap();
        drop(host);
        assert!(!path.exists());
    }

    #[test]
    fn one_in_use_is_an_error_that_names_it_and_stays() {
        let dir = TempDir::new();
        let path = dir.join("vsock");
        let _first = Host::listen(&path.clone().into()).unwrap();
        let error = Host::listen(&path.clone().into()).unwrap_err();
        assert_eq!(error.to_string(), format!("cannot listen at vsock socket {}", path.display()));
        UnixStream::connect(&path).unwrap();

        let file = dir.join("no socket");
        fs::write(&file, "precious").unwrap();
        Host::listen(&file.clone().into()).unwrap_err();
        assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    }

    #[test]
    fn link_to_another_socket_is_not_followed() {
        let dir = TempDir::new();
        let host = Host::listen(&dir.join("vsock").into()).unwrap();
        let daemon = UnixListener::bind(dir.join("daemon")).unwrap();
        daemon.set_nonblocking(true).unwrap();
        std::os::unix::fs::symlink("daemon", dir.join("vsock_1")).unwrap();
        let error = host.connect(1).unwrap_err().to_string();
        assert!(error.ends_with("vsock_1 is a link or no socket, and is not followed"), "{error}");
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
    fn a_name_that_is_another_s_by_now_stays() {
        let dir = TempDir::new();
        let path = dir.join("vsock");
        let first = Host::listen(&path.clone().into()).unwrap();
        fs::remove_file(&path).unwrap();
        let _second = Host::listen(&path.clone().into()).unwrap();
        drop(first);
        assert!(path.exists());
    }
}
