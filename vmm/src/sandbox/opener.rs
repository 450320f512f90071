//! A process beside the VM's that connects sockets for its confined device threads.
//!
//! A vsock device connects to `PATH_N` for its guest's connection to port N. Neither seccomp nor Landlock can
//! tell that path from another VM's API socket. The opener can: it was told the paths before the guest ran,
//! and connects to nothing else.
//!
//! ```text
//!   before the guest runs: fork ── Allow(PATH) ──> 0 ── Seal        (no other path from here on)
//!   device thread: Connect(0, N) ──> the opener: open PATH_N, check it, connect ──> descriptor
//! ```
//!
//! It is forked before guest memory is mapped, and holds no descriptor of the VM. It ends with the VM's
//! process.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};
use serde::{Deserialize, Serialize};

use super::{ThreadKind, confine_this_thread, process};
use crate::error::{Error, Result};
use crate::packets::{receive, send};
use crate::sockets::connect_to_file;
use crate::sync::lock;

/// A request to the opener.
#[derive(Debug, Serialize, Deserialize)]
enum OpenerRequest {
    /// Allows connections to `PATH_N`. The directory lies beside it if it was checked.
    Allow { path: PathBuf },
    /// Refuses all other paths from now on.
    Seal,
    /// Connects to `PATH_N` for the path with this number.
    Connect { number: usize, port: u32 },
}

/// An answer of the opener.
#[derive(Debug, Serialize, Deserialize)]
enum OpenerAnswer {
    /// The path has this number.
    Allowed(usize),
    /// Done. The descriptor of a connection lies beside it.
    Done,
    /// The system refused with this number and reason.
    Failed { errno: Option<i32>, reason: String },
}

/// The opener of this process, once it was started.
static OPENER: OnceLock<Mutex<OwnedFd>> = OnceLock::new();

/// Forks the opener. The process has one thread, and no guest memory.
///
/// # Errors
/// [`Error::Host`] if the host refuses a process.
pub(super) fn start() -> Result<()> {
    let failed = |source| Error::host("start the process that connects sockets", source);
    let (near, far) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(|errno| failed(errno.into()))?;
    // SAFETY: the process has one thread, so no lock of the heap is held in the child.
    match unsafe { libc::fork() } {
        -1 => return Err(failed(io::Error::last_os_error())),
        0 => serve_and_exit(&far),
        _ => {}
    }
    let _ = OPENER.set(Mutex::new(near));
    Ok(())
}

/// Whether the process has an opener.
pub(crate) fn is_running() -> bool {
    OPENER.get().is_some()
}

/// Allows the opener to connect to `PATH_N`. Returns the path's number.
///
/// # Errors
/// The opener has ended, or takes no more paths.
pub(crate) fn allow(directory: Option<BorrowedFd<'_>>, path: &Path) -> io::Result<usize> {
    match ask(&OpenerRequest::Allow { path: path.to_owned() }, directory)? {
        (OpenerAnswer::Allowed(number), _) => Ok(number),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Makes the opener refuse further paths.
pub(crate) fn seal() {
    if is_running() {
        // Without an opener there is nothing to seal: a connection fails then.
        let _ = ask(&OpenerRequest::Seal, None);
    }
}

/// Connects to `PATH_port` for the path with this number.
///
/// # Errors
/// As [`connect_to_file`]; or the opener has ended.
pub(crate) fn connect(number: usize, port: u32) -> io::Result<UnixStream> {
    match ask(&OpenerRequest::Connect { number, port }, None)? {
        (OpenerAnswer::Done, Some(socket)) => Ok(socket.into()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn ask(request: &OpenerRequest, fd: Option<BorrowedFd<'_>>) -> io::Result<(OpenerAnswer, Option<OwnedFd>)> {
    let socket = lock(OPENER.get().ok_or(io::ErrorKind::NotConnected)?);
    send(&*socket, request, fd, SendFlags::empty())?;
    match receive(&*socket, RecvFlags::empty())? {
        Some((OpenerAnswer::Failed { errno: Some(errno), .. }, _)) => {
            Err(io::Error::from_raw_os_error(errno))
        }
        Some((OpenerAnswer::Failed { reason, .. }, _)) => Err(io::Error::other(reason)),
        Some(answer) => Ok(answer),
        None => Err(io::ErrorKind::BrokenPipe.into()),
    }
}

/// The opener's process.
fn serve_and_exit(socket: &OwnedFd) -> ! {
    /// Number of its socket, after standard error.
    const SOCKET: i32 = 3;
    // SAFETY: the child owns copies of all descriptors and uses none but standard error and its socket.
    // `socket` is not used afterwards.
    unsafe {
        libc::dup2(socket.as_raw_fd(), SOCKET);
        libc::syscall(libc::SYS_close_range, SOCKET + 1, libc::c_uint::MAX, 0);
        libc::close(0);
        libc::close(1);
    }
    // Its end is that of the VM's process, also when a terminal sends a signal to both.
    // SAFETY: sigfillset initialises the set, and a null pointer for the old mask is allowed.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigdelset(&raw mut all, libc::SIGSYS);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
    }
    let _ = rustix::thread::set_name(c"volt-opener");
    if process::harden().is_err() {
        // SAFETY: as at the end.
        unsafe { libc::_exit(1) }
    }
    confine_this_thread(ThreadKind::Opener);
    // SAFETY: open since dup2, and never closed.
    let socket = unsafe { BorrowedFd::borrow_raw(SOCKET) };
    let mut allowed = AllowedSockets::default();
    while let Ok(Some((request, directory))) = receive(socket, RecvFlags::empty()) {
        let (answer, beside) = match allowed.answer(request, directory) {
            Ok((answer, beside)) => (answer, beside),
            Err(error) => {
                let (errno, reason) = (error.raw_os_error(), error.to_string());
                (OpenerAnswer::Failed { errno, reason }, None)
            }
        };
        if send(socket, &answer, beside.as_ref().map(AsFd::as_fd), SendFlags::empty()).is_err() {
            break;
        }
    }
    // SAFETY: ends the process without the handlers that its parent registered.
    unsafe { libc::_exit(0) }
}

/// The sockets that the opener may connect to, and whether it takes more.
#[derive(Debug, Default)]
struct AllowedSockets {
    sockets: Vec<(Option<OwnedFd>, PathBuf)>,
    is_sealed: bool,
}

impl AllowedSockets {
    fn answer(
        &mut self,
        request: OpenerRequest,
        directory: Option<OwnedFd>,
    ) -> io::Result<(OpenerAnswer, Option<OwnedFd>)> {
        match request {
            OpenerRequest::Allow { .. } if self.is_sealed => Err(io::ErrorKind::PermissionDenied.into()),
            OpenerRequest::Allow { path } => {
                self.sockets.push((directory, path));
                Ok((OpenerAnswer::Allowed(self.sockets.len() - 1), None))
            }
            OpenerRequest::Seal => {
                self.is_sealed = true;
                Ok((OpenerAnswer::Done, None))
            }
            OpenerRequest::Connect { number, port } => {
                let (directory, path) = self.sockets.get(number).ok_or(io::ErrorKind::PermissionDenied)?;
                let mut path = path.clone().into_os_string();
                path.push(format!("_{port}"));
                let stream = connect_to_file(directory.as_ref().map(AsFd::as_fd), Path::new(&path))?;
                Ok((OpenerAnswer::Done, Some(stream.into())))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::testing::ScratchDir;

    #[test]
    fn sealed_opener_connects_to_allowed_sockets_alone() {
        let scratch = ScratchDir::new();
        let listener = UnixListener::bind(scratch.join("vsock_52")).unwrap();
        let _other = UnixListener::bind(scratch.join("api.sock")).unwrap();
        let mut allowed = AllowedSockets::default();
        let mut ask = |request| allowed.answer(request, None).map_err(|error| error.kind());
        let connect = |number, port| OpenerRequest::Connect { number, port };
        let vsock = OpenerRequest::Allow { path: scratch.join("vsock") };
        assert!(matches!(ask(vsock), Ok((OpenerAnswer::Allowed(0), None))));
        assert!(matches!(ask(OpenerRequest::Seal), Ok((OpenerAnswer::Done, None))));
        let other = OpenerRequest::Allow { path: scratch.join("api.sock") };
        assert_eq!(ask(other).unwrap_err(), io::ErrorKind::PermissionDenied);
        assert_eq!(ask(connect(1, 52)).unwrap_err(), io::ErrorKind::PermissionDenied);
        assert_eq!(ask(connect(0, 53)).unwrap_err(), io::ErrorKind::NotFound);
        let (_, socket) = ask(connect(0, 52)).unwrap();
        assert!(socket.is_some());
        listener.accept().unwrap();
    }
}
