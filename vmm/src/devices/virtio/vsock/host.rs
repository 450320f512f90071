//! The host's side: the socket that leads into the guest, and those that the guest reaches.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::error::{Error, Result};

/// The socket where programs of the host connect to the guest.
#[derive(Debug)]
pub(super) struct Host {
    listener: UnixListener,
    path: PathBuf,
    /// Which file it is: device and inode.
    file: (u64, u64),
}

impl Host {
    /// Listens at `path`, in place of a socket file that nobody listens at any more.
    ///
    /// # Errors
    /// Something else has the name, or the directory is closed to this user.
    pub fn listen(path: &Path) -> Result<Self> {
        let failed = |source: io::Error| Error::file("listen at vsock socket", path.display(), source);
        let listener = match UnixListener::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_abandoned(path) => {
                fs::remove_file(path).map_err(failed)?;
                UnixListener::bind(path)
            }
            bound => bound,
        };
        let listener = listener.map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let file = fs::symlink_metadata(path).map_err(failed)?;
        Ok(Self { listener, path: path.to_owned(), file: (file.dev(), file.ino()) })
    }

    /// The next program of the host that wants something.
    pub fn accept(&self) -> io::Result<UnixStream> {
        let (stream, _) = self.listener.accept()?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    }

    /// Connects to whoever listens for the guest at `port`. One whose queue is full does not.
    pub fn connect(&self, port: u32) -> io::Result<UnixStream> {
        let mut path = self.path.clone().into_os_string();
        path.push(format!("_{port}"));
        connect_now(Path::new(&path))
    }
}

impl AsFd for Host {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Host {
    /// The name goes, unless it has come to be another's.
    fn drop(&mut self) {
        let is_ours =
            fs::symlink_metadata(&self.path).is_ok_and(|file| (file.dev(), file.ino()) == self.file);
        if is_ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn is_abandoned(path: &Path) -> bool {
    let refused =
        |result: io::Result<_>| result.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket()) && refused(connect_now(path))
}

/// Never waits, as std's does for a listener that is busy.
fn connect_now(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::super::testing::TempDir;
    use super::*;

    #[test]
    fn an_abandoned_socket_is_replaced_and_ours_goes_with_us() {
        let dir = TempDir::new();
        let path = dir.join("vsock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let host = Host::listen(&path).unwrap();
        UnixStream::connect(&path).unwrap();
        drop(host);
        assert!(!path.exists());
    }

    #[test]
    fn one_in_use_is_an_error_that_names_it_and_stays() {
        let dir = TempDir::new();
        let path = dir.join("vsock");
        let _first = Host::listen(&path).unwrap();
        let error = Host::listen(&path).unwrap_err();
        assert_eq!(error.to_string(), format!("cannot listen at vsock socket {}", path.display()));
        UnixStream::connect(&path).unwrap();

        let file = dir.join("no socket");
        fs::write(&file, "precious").unwrap();
        Host::listen(&file).unwrap_err();
        assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    }

    #[test]
    fn a_name_that_is_another_s_by_now_stays() {
        let dir = TempDir::new();
        let path = dir.join("vsock");
        let first = Host::listen(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let _second = Host::listen(&path).unwrap();
        drop(first);
        assert!(path.exists());
    }
}
