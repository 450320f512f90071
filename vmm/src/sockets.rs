//! Unix sockets in the file system.
//!
//! [`lock_directory_of`] is mutual exclusion for the sockets of a directory. A socket refuses connections if
//! a dead process left it, and also between bind and listen. Two processes that replace a dead socket at once
//! could remove each other's, so each locks the directory while it removes, binds and listens.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{CWD, FileType, FlockOperation, Mode, OFlags};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

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
            Err(rustix::io::Errno::WOULDBLOCK) => thread::sleep(RETRY_INTERVAL),
            Err(_) => return None,
        }
    }
    log::warn!("another program holds a lock on {}: binding a socket there without a lock", parent.display());
    None
}

/// Listens at `path`, or at its name in `directory`, in place of a socket that a dead process left. Returns
/// the device and inode of the socket's file, too. With `replaces`, it takes the path from a process that
/// listens there: that one keeps its connections and gets no new ones.
///
/// # Errors
/// Another process listens there and must not be replaced, the file is not a socket, or the host refuses.
pub(crate) fn listen(
    directory: Option<BorrowedFd<'_>>,
    path: &Path,
    replaces: bool,
) -> io::Result<(UnixListener, (u64, u64))> {
    let on_host = in_directory(directory, path);
    let _lock = lock_directory_of(&on_host);
    let socket = match UnixListener::bind(&on_host) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            remove_socket(directory, path, &on_host, replaces)?;
            UnixListener::bind(&on_host)
        }
        bound => bound,
    }?;
    let found = socket.set_nonblocking(true).and_then(|()| std::fs::symlink_metadata(&on_host));
    let file = found.inspect_err(|_| {
        // The lock on the directory is still held, so the file is the one that was just bound.
        let _ = std::fs::remove_file(&on_host);
    })?;
    Ok((socket, (file.dev(), file.ino())))
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
            let peer = connected.ok().and_then(|stream| socket_peercred(&stream).ok());
            let holder = peer.and_then(|peer| u32::try_from(peer.pid.as_raw_nonzero().get()).ok());
            let problem =
                format!("another process listens at this path{}", holders::named(holder.map(Holder::of)));
            Err(io::Error::new(io::ErrorKind::AddrInUse, problem))
        }
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
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Connects to the checked file, and not to one that has taken its name.
    connect(&socket, &SocketAddrUnix::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?)?;
    Ok(socket.into())
}
