//! Unix sockets in the file system.
//!
//! [`lock_directory_of`] is mutual exclusion for the sockets of a directory. A socket refuses connections if
//! a dead process left it, and also between bind and listen. Two processes that replace a dead socket at once
//! could remove each other's, so each locks the directory while it removes, binds and listens.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{CWD, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, socket_with};
use serde::{Deserialize, Serialize};

use crate::holders::{self, Holder};

/// The time between two attempts to lock, and their number: one second in all. This program holds the lock
/// for microseconds.
const RETRY_INTERVAL: Duration = Duration::from_millis(2);
const ATTEMPTS: u32 = 500;

/// Locks the directory of the socket `path` (flock) until the result is dropped. Returns none if another
/// program holds the lock for a second, or if the directory cannot be locked.
#[must_use]
pub fn lock_directory_of(path: &Path) -> Option<File> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let directory = rustix::fs::open(parent, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    for _ in 0..ATTEMPTS {
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(directory.into()),
            Err(Errno::WOULDBLOCK) => thread::sleep(RETRY_INTERVAL),
            Err(_) => return None,
        }
    }
    log::warn!("another program holds a lock on {}: binding a socket there without a lock", parent.display());
    None
}

/// How a process listens at a socket.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct ListenOptions {
    /// Gives the socket's file mode 0600.
    pub is_private: bool,
    /// Takes the path from a process that listens there: that one keeps its connections and gets no new ones.
    pub replaces: bool,
}

/// Listens at `path`, or at its name in `directory`, in place of a socket that a dead process left. Returns
/// the device and inode of the socket's file, too.
///
/// # Errors
/// Another process listens there and must not be replaced, the file is not a socket, or the host refuses.
pub(crate) fn listen(
    directory: Option<BorrowedFd<'_>>,
    path: &Path,
    options: ListenOptions,
) -> io::Result<(UnixListener, (u64, u64))> {
    let on_host = in_directory(directory, path);
    let address = SocketAddrUnix::new(&on_host)?;
    let socket = stream_socket()?;
    if options.is_private {
        // The file gets the mode that the socket has when it is bound, so it is never open to others.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    }
    let _lock = lock_directory_of(&on_host);
    match bind(&socket, &address) {
        Err(Errno::ADDRINUSE) => {
            remove_socket(directory, path, &on_host, options.replaces)?;
            bind(&socket, &address)?;
        }
        bound => bound?,
    }
    let listening = rustix::net::listen(&socket, BACKLOG).map_err(io::Error::from);
    let file = listening.and_then(|()| std::fs::symlink_metadata(&on_host)).inspect_err(|_| {
        // The lock on the directory is still held, so the file is the one that was just bound.
        let _ = std::fs::remove_file(&on_host);
    })?;
    Ok((socket.into(), (file.dev(), file.ino())))
}

/// Connections that wait for accept(2): as many as the system allows (`net.core.somaxconn`).
pub(crate) const BACKLOG: i32 = -1;

/// A socket whose calls do not block, also not the connection to a peer that does not accept.
fn stream_socket() -> rustix::io::Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

/// The path of a name in an open directory.
fn in_directory(directory: Option<BorrowedFd<'_>>, path: &Path) -> PathBuf {
    match (directory, path.file_name()) {
        (Some(directory), Some(name)) => {
            Path::new(&format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name)
        }
        _ => path.to_owned(),
    }
}

/// Removes a socket at which no process listens, or any socket.
fn remove_socket(
    directory: Option<BorrowedFd<'_>>,
    path: &Path,
    on_host: &Path,
    is_any: bool,
) -> io::Result<()> {
    if !std::fs::symlink_metadata(on_host)?.file_type().is_socket() {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "a file that is not a socket exists at this path; remove the file or choose another path",
        ));
    }
    if is_any {
        return std::fs::remove_file(on_host);
    }
    match connect_to_file(directory, path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(on_host),
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        connected => {
            let holder = connected.ok().and_then(|stream| peer_of(&stream).ok()?.process);
            let problem =
                format!("another process listens at this path{}", holders::named(holder.map(Holder::of)));
            Err(io::Error::new(io::ErrorKind::AddrInUse, problem))
        }
    }
}

/// The process at the other end of a unix socket when it connected or listened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its number, if it is in this process's pid namespace or one beneath.
    pub process: Option<u32>,
    /// Its user in this process's user namespace.
    pub user: u32,
}

/// Tells who is at the other end of a unix socket (`SO_PEERCRED` of unix(7)).
///
/// # Errors
/// The socket is not connected.
pub fn peer_of(socket: impl AsFd) -> io::Result<Peer> {
    // SAFETY: ucred consists of integers.
    let mut found: libc::ucred = unsafe { std::mem::zeroed() };
    let mut len = libc::socklen_t::try_from(size_of_val(&found)).expect("it has 12 bytes");
    let (socket, place) = (socket.as_fd().as_raw_fd(), (&raw mut found).cast());
    // SAFETY: the kernel writes at most `len` bytes.
    match unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, place, &raw mut len) } {
        0 => Ok(Peer { process: u32::try_from(found.pid).ok().filter(|pid| *pid != 0), user: found.uid }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Connects to the listener at `path`, or at its name in `directory`. Fails where std would wait for a busy
/// listener.
///
/// # Errors
/// No process listens; or the file is not a socket. A link to a socket is refused, too: an unpacked snapshot
/// may contain a link to a socket that its guest was not given.
pub(crate) fn connect_to_file(directory: Option<BorrowedFd<'_>>, path: &Path) -> io::Result<UnixStream> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = match (directory, path.file_name()) {
        (Some(directory), Some(name)) => rustix::fs::openat(directory, name, flags, Mode::empty())?,
        _ => rustix::fs::openat(CWD, path, flags, Mode::empty())?,
    };
    let stat = rustix::fs::fstat(&file)?;
    if !FileType::from_raw_mode(stat.st_mode).is_socket() || stat.st_nlink != 1 {
        let problem = format!("{} is a link or not a socket; links are not followed", path.display());
        return Err(io::Error::other(problem));
    }
    let socket = stream_socket()?;
    // Connects to the checked file, and not to one that has taken its name.
    connect(&socket, &SocketAddrUnix::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?)?;
    Ok(socket.into())
}
