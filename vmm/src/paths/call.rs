//! The calls that a confined thread may not make, as values that can be sent. Most of them take a path.

use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, ResolveFlags};
use rustix::io::retry_on_intr;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde::{Deserialize, Serialize};

use crate::sockets::{self, ListenOptions};

/// A path as text. One that is not UTF-8 is a list of bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum PathText {
    Text(String),
    Bytes(Vec<u8>),
}

impl From<&Path> for PathText {
    fn from(path: &Path) -> Self {
        path.to_str()
            .map_or_else(|| Self::Bytes(path.as_os_str().as_bytes().into()), |text| Self::Text(text.into()))
    }
}

impl From<PathText> for PathBuf {
    fn from(path: PathText) -> Self {
        match path {
            PathText::Text(text) => text.into(),
            PathText::Bytes(bytes) => OsString::from_vec(bytes).into(),
        }
    }
}

/// A call. Its path, and the directory where that starts, are given beside it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum PathCall {
    /// openat(2), or openat2(2) with rules for the lookup. The numbers are those of the call.
    Open { flags: u32, mode: u32, resolve: Option<u64> },
    /// mkdirat(2).
    MakeDir { mode: u32 },
    /// unlinkat(2).
    Remove { is_directory: bool },
    /// renameat2(2). Both paths start at the same directory.
    Rename { to: PathText, replaces: bool },
    /// linkat(2).
    Link { to: PathText },
    /// [`sockets::listen`].
    Listen(ListenOptions),
    /// The path of the file beside the call, as the kernel tells it.
    PathOf,
    /// The kernel's description of the file beside the call (`/proc/PID/fdinfo` of proc(5)).
    InfoOf,
    /// Connects to the socket of a process that fills memory, without a wait.
    ConnectToPager(PagerSocket),
    /// Binds this TCP port of 127.0.0.1 for a moment.
    CheckPort(u16),
}

/// The socket of a process that fills guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PagerSocket {
    /// A pager's: packets.
    Packets,
    /// A memory handler's: a stream.
    Stream,
}

/// The result of a call.
#[derive(Debug)]
pub(super) enum Answer {
    Done,
    Opened(OwnedFd),
    Listening { socket: OwnedFd, file: (u64, u64) },
    Path(PathText),
    Text(String),
}

impl Answer {
    pub fn descriptor(self) -> io::Result<OwnedFd> {
        match self {
            Self::Opened(file) => Ok(file),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

impl PathCall {
    /// Makes the call.
    ///
    /// # Errors
    /// As the call.
    pub fn make(self, directory: Option<BorrowedFd<'_>>, path: &Path) -> io::Result<Answer> {
        let at = directory.unwrap_or(CWD);
        match self {
            Self::Open { flags, mode, resolve } => {
                let (flags, mode) = (OFlags::from_bits_retain(flags), Mode::from_raw_mode(mode));
                let opened = retry_on_intr(|| match resolve {
                    None => rustix::fs::openat(at, path, flags, mode),
                    Some(resolve) => {
                        rustix::fs::openat2(at, path, flags, mode, ResolveFlags::from_bits_retain(resolve))
                    }
                });
                return Ok(Answer::Opened(opened?));
            }
            Self::MakeDir { mode } => rustix::fs::mkdirat(at, path, Mode::from_raw_mode(mode))?,
            Self::Remove { is_directory } => {
                let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
                rustix::fs::unlinkat(at, path, flags)?;
            }
            Self::Rename { to, replaces: true } => rustix::fs::renameat(at, path, at, PathBuf::from(to))?,
            Self::Rename { to, replaces: false } => {
                rustix::fs::renameat_with(at, path, at, PathBuf::from(to), RenameFlags::NOREPLACE)?;
            }
            Self::Link { to } => rustix::fs::linkat(at, path, at, PathBuf::from(to), AtFlags::empty())?,
            Self::Listen(options) => {
                let (socket, file) = sockets::listen(directory, path, options)?;
                return Ok(Answer::Listening { socket: socket.into(), file });
            }
            Self::PathOf => return Ok(Answer::Path(super::path_of(at)?.as_path().into())),
            Self::InfoOf => {
                let number = at.as_raw_fd();
                return Ok(Answer::Text(std::fs::read_to_string(format!("/proc/self/fdinfo/{number}"))?));
            }
            Self::ConnectToPager(kind) => {
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                let kind = match kind {
                    PagerSocket::Packets => SocketType::SEQPACKET,
                    PagerSocket::Stream => SocketType::STREAM,
                };
                let socket = socket_with(AddressFamily::UNIX, kind, flags, None)?;
                connect(&socket, &SocketAddrUnix::new(path)?)?;
                return Ok(Answer::Opened(socket));
            }
            Self::CheckPort(port) => drop(TcpListener::bind((Ipv4Addr::LOCALHOST, port))?),
        }
        Ok(Answer::Done)
    }
}
