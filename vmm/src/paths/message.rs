//! Messages between a process and its opener and starter.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{RecvFlags, SendFlags};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::call::{PathCall, PathText};
use super::program::{ProgramPattern, ProgramStart};
use crate::holders::Holder;
use crate::nat::NatSettings;
use crate::packets::{receive_several, send_several};

/// Sends a message with its number. Tries twice: the host may lack memory for a moment, and an error would
/// leave a file behind that neither end knows of.
///
/// # Errors
/// As [`send_several`].
pub(super) fn send(socket: impl AsFd, message: &impl Serialize, beside: &[BorrowedFd<'_>]) -> io::Result<()> {
    let send = || send_several(&socket, message, beside, SendFlags::empty());
    send().or_else(|error| if is_passing(&error) { send() } else { Err(error) })
}

/// Receives a message with its number, or `None` if the other end is gone. Tries twice, as [`send`]: the
/// message stays in the socket after an error of the system.
///
/// # Errors
/// As [`receive_several`].
pub(super) fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let receive = || receive_several(&socket, RecvFlags::empty());
    receive().or_else(|error| if is_passing(&error) { receive() } else { Err(error) })
}

/// Whether the error says that the process at the other end is gone.
pub(super) fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// Whether the system refused a call that may succeed later.
fn is_passing(error: &io::Error) -> bool {
    error.raw_os_error().is_some() && !is_end(error)
}

/// A request. Its descriptors lie beside it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Has an answer and no effect.
    Greet,
    /// Makes a call. Without a path, that of the file beside it.
    Make { path: PathText, call: PathCall },
    /// Allows connections to `PATH_N`. The directory lies beside it if it was checked.
    Allow { path: PathText },
    /// Notes that this process listens at the socket with this device and inode. It has no answer.
    Own { file: (u64, u64) },
    /// Allows connections to the pager that listens at this path. It has no answer.
    AllowPager { path: PathText },
    /// Allows no further sockets, or programs, from now on. It has no answer.
    Seal,
    /// Connects to `PATH_N` for the path with this number.
    Connect { number: usize, port: u32 },
    /// Allows a program also after [`Request::Seal`]. It has no answer.
    AllowProgram(ProgramPattern),
    /// Starts a program. The starter answers this and the following ones, and the opener those before.
    Start(ProgramStart),
    /// Tells how a program ended.
    StatusOf { pid: u32 },
    /// Forgets a program: its status will not be asked for.
    Detach { pid: u32 },
    /// Tells which process has the lock of the file beside it.
    HolderOfLock,
    /// Tells which process uses a tap.
    HolderOfTap { name: String },
    /// Tells which process listens at a TCP port.
    HolderOfPort { port: u16 },
    /// Reads the network of the host.
    HostNetwork,
    /// Starts a resolver.
    StartResolver,
    /// Makes a network by address translation, after [`Request::Seal`] for a VM that has one.
    MakeNat(NatSettings),
}

/// An answer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The path has this number.
    Allowed(usize),
    /// Done. The descriptor of a file or connection lies beside it.
    Done,
    /// The socket lies beside it. Its file has this device and inode.
    Listening {
        file: (u64, u64),
    },
    Path(PathText),
    Text(String),
    Holder(Option<Holder>),
    /// The tap of a network lies beside it.
    Nat {
        has_v6: bool,
    },
    /// The program runs in this process. A descriptor of it lies beside it.
    Started {
        pid: u32,
    },
    /// The program has ended with this status, as wait(2) tells it.
    Ended {
        status: i32,
    },
    /// The system refused with this number, or for this reason.
    Failed {
        errno: Option<i32>,
        reason: String,
    },
}

impl Answer {
    pub fn failed(error: &io::Error) -> Self {
        // The opener's own refusals have no number.
        let refused = (error.kind() == io::ErrorKind::PermissionDenied).then_some(libc::EACCES);
        let errno = error.raw_os_error().or(refused);
        Self::Failed { errno, reason: errno.map_or_else(|| error.to_string(), |_| String::new()) }
    }
}
