//! The opener: a process beside the VM's that makes calls with paths for its confined threads, connects their
//! sockets, and starts other programs.
//!
//! ```text
//!   start of the process: fork ──────────────> sleeps until a request has an answer
//!   confined thread: Make(open, PATH) ───────> open PATH             ──> descriptor
//!   before the guest runs: Allow(PATH) ──> 0 ── Seal          (no other socket or program from here on)
//!   device thread: Connect(0, N) ────────────> open PATH_N, check it, connect ──> descriptor
//!   confined thread: Start(PROGRAM) ─────────> fork, exec ──> descriptor of the process
//! ```
//!
//! A vsock device connects to `PATH_N` for its guest's connection to port N. Neither seccomp nor Landlock can
//! tell that path from another VM's API socket. The opener can: it was told the paths before the guest ran,
//! and connects to nothing else. [`super::rules::Bounds`] say what else it opens.
//!
//! It is forked before guest memory is mapped, and holds no descriptor of the VM. It ends with the VM's
//! process.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Mutex, Once, OnceLock};

use rustix::fs::OFlags;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};
use volt_policy::HostNetwork;

use super::call::{self, PathCall};
use super::channel::{self, Channel};
use super::message::{self, Answer, Request};
use super::program::{ProgramPattern, ProgramStart};
use super::serve;
pub(crate) use super::serve::Duties;
use crate::error::{Error, Result};
use crate::holders::Holder;
use crate::nat::{NatLink, NatSettings};
use crate::sync::lock;

/// The sockets of the opener and the starter.
#[derive(Debug)]
struct Beside {
    opener: Mutex<Channel>,
    starter: Mutex<Channel>,
    /// The socket that wakes them at the first request with an answer. Others wait in theirs until then.
    wake: OwnedFd,
    woken: Once,
}

impl Beside {
    fn wake(&self) {
        self.woken.call_once(|| {
            // Where they have ended, the request fails.
            let _ = rustix::net::send(&self.wake, &[0], SendFlags::NOSIGNAL);
        });
    }
}

/// Those of this process, once they were started.
static BESIDE: OnceLock<Beside> = OnceLock::new();

/// Forks the opener and the starter. The process has one thread, and no guest memory.
///
/// # Errors
/// [`Error::Host`] if the host refuses a process.
pub(crate) fn start(duties: &Duties<'_>) -> Result<()> {
    let failed = |source| Error::host("start the process that opens files", source);
    let pair = || {
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        pair.map_err(|errno| failed(errno.into()))
    };
    let ((opener, far_opener), (starter, far_starter)) = (pair()?, pair()?);
    let (wake, far_wake) = pair()?;
    let ends = serve::Ends { opener: far_opener, starter: far_starter, wake: far_wake };
    // SAFETY: the process has one thread, so no lock of the heap is held in the child.
    match unsafe { libc::fork() } {
        -1 => return Err(failed(io::Error::last_os_error())),
        0 => serve::run(&ends, duties),
        _ => {}
    }
    let [opener, starter] = [opener, starter].map(|socket| Mutex::new(Channel::new(socket)));
    let _ = BESIDE.set(Beside { opener, starter, wake, woken: Once::new() });
    Ok(())
}

/// Wakes the opener and the starter, and does not wait for them. They are then confined before the first
/// request, which need not wait for that.
#[cfg(any(test, feature = "internal"))]
pub fn wake() {
    BESIDE.get().into_iter().for_each(Beside::wake);
}

/// Wakes the opener and the starter. Returns once they are confined, or have ended.
pub(crate) fn greet() {
    let Some(processes) = BESIDE.get() else { return };
    processes.wake();
    for process in [&processes.opener, &processes.starter] {
        let _ = lock(process).ask(&Request::Greet, &[]);
    }
}

/// Whether the process has an opener.
pub(crate) fn is_running() -> bool {
    BESIDE.get().is_some()
}

/// Makes a call at the opener. A path that is not absolute starts at `beside`, and an empty one is the file
/// `beside`.
///
/// # Errors
/// As the call; or the opener has ended.
pub(super) fn make(beside: Option<BorrowedFd<'_>>, path: &Path, call: PathCall) -> io::Result<call::Answer> {
    let beside: Vec<_> = beside.into_iter().collect();
    result_of(ask(&Request::Make { path: path.into(), call }, &beside)?)
}

/// The result of a call, from an answer and the descriptors beside it.
fn result_of((answer, fds): (Answer, Vec<OwnedFd>)) -> io::Result<call::Answer> {
    Ok(match (answer, fds.into_iter().next()) {
        (Answer::Done, None) => call::Answer::Done,
        (Answer::Done, Some(file)) => call::Answer::Opened(file),
        (Answer::Path(path), None) => call::Answer::Path(path),
        (Answer::Text(text), None) => call::Answer::Text(text),
        (Answer::Listening { file }, Some(socket)) => call::Answer::Listening { socket, file },
        _ => return Err(io::ErrorKind::InvalidData.into()),
    })
}

/// Opens files at the opener, which are asked for together.
pub(super) fn open_all(files: &[(PathBuf, OFlags)]) -> Vec<io::Result<OwnedFd>> {
    let request = |(path, flags): &(PathBuf, OFlags)| {
        let call = PathCall::Open { flags: flags.bits(), mode: 0, resolve: None };
        Request::Make { path: path.as_path().into(), call }
    };
    let Some(processes) = BESIDE.get() else { return Vec::new() };
    processes.wake();
    let requests: Vec<_> = files.iter().map(request).collect();
    let answers = lock(&processes.opener).ask_all(&requests);
    answers.into_iter().map(|answered| result_of(answered?)?.descriptor()).collect()
}

/// Allows the opener to connect to `PATH_N`. Returns the path's number.
///
/// # Errors
/// The opener has ended, or takes no more paths.
pub(crate) fn allow(directory: Option<BorrowedFd<'_>>, path: &Path) -> io::Result<usize> {
    let beside: Vec<_> = directory.into_iter().collect();
    match ask(&Request::Allow { path: path.into() }, &beside)?.0 {
        Answer::Allowed(number) => Ok(number),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Tells the opener that this process listens at a socket, which it then may remove.
pub(super) fn own(file: (u64, u64)) {
    if let Some(processes) = BESIDE.get() {
        // Where it has ended, the file stays.
        let _ = lock(&processes.opener).tell(&Request::Own { file }, &[]);
    }
}

/// Allows the opener to connect to a pager also after [`seal`].
pub(crate) fn allow_pager(path: &Path) {
    if let Some(processes) = BESIDE.get() {
        // One that has ended connects to nothing.
        let _ = lock(&processes.opener).tell(&Request::AllowPager { path: path.into() }, &[]);
    }
}

/// Makes the opener refuse further sockets, and the starter programs that it has not started yet. Does not
/// wait for them: requests keep their order. Ends the process if they cannot be told.
pub(crate) fn seal() {
    for process in BESIDE.get().iter().flat_map(|processes| [&processes.opener, &processes.starter]) {
        match lock(process).tell(&Request::Seal, &[]) {
            // Where one has ended there is nothing to seal.
            Err(error) if !message::is_end(&error) => {
                log::error!("cannot confine the processes beside this one: {error}; the process ends");
                std::process::abort();
            }
            _ => {}
        }
    }
}

/// Connects to `PATH_port` for the path with this number.
///
/// # Errors
/// As [`crate::sockets::connect_to_file`]; or the opener has ended.
pub(crate) fn connect(number: usize, port: u32) -> io::Result<UnixStream> {
    let (_, fds) = ask(&Request::Connect { number, port }, &[])?;
    fds.into_iter().next().map(UnixStream::from).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Makes the starter start a program also after [`seal`]. Does not wait for it.
pub(super) fn allow_program(program: ProgramPattern) {
    if let Some(processes) = BESIDE.get() {
        // A starter that has ended starts nothing.
        let _ = lock(&processes.starter).tell(&Request::AllowProgram(program), &[]);
    }
}

/// Starts a program. Returns the number of its process and a descriptor of it (pidfd_open(2)).
///
/// # Errors
/// The program cannot be started; or the starter has ended.
pub(super) fn start_program(start: ProgramStart, beside: &[BorrowedFd<'_>]) -> io::Result<(u32, OwnedFd)> {
    let (answer, fds) = ask(&Request::Start(start), beside)?;
    match (answer, fds.into_iter().next()) {
        (Answer::Started { pid }, Some(handle)) => Ok((pid, handle)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Returns the status of a program that has ended. It can be taken once.
///
/// # Errors
/// The program has not ended; or the starter has.
pub(super) fn status_of(pid: u32) -> io::Result<ExitStatus> {
    match ask(&Request::StatusOf { pid }, &[])?.0 {
        Answer::Ended { status } => Ok(ExitStatus::from_raw(status)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// The process that has the lock of a file, if it can be found.
pub(super) fn holder_of_lock(file: &File) -> Option<Holder> {
    holder(&Request::HolderOfLock, &[file.as_fd()])
}

/// The process that uses a tap, if it can be found.
pub(super) fn holder_of_tap(name: &str) -> Option<Holder> {
    holder(&Request::HolderOfTap { name: name.to_owned() }, &[])
}

/// The process that listens at a TCP port, if it can be found.
pub(super) fn holder_of_port(port: u16) -> Option<Holder> {
    holder(&Request::HolderOfPort { port }, &[])
}

/// The network of the host.
///
/// # Errors
/// The starter has ended, or cannot read it.
pub(super) fn host_network() -> io::Result<HostNetwork> {
    let (_, fds) = ask(&Request::HostNetwork, &[])?;
    let file = fds.into_iter().next().map(File::from).ok_or_else(channel::ended)?;
    Ok(serde_json::from_str(&io::read_to_string(file)?)?)
}

/// Starts a resolver. Returns the device's end of its socket.
///
/// # Errors
/// The starter has ended, or the host refuses a process.
pub(super) fn start_resolver() -> io::Result<OwnedFd> {
    let (_, fds) = ask(&Request::StartResolver, &[])?;
    fds.into_iter().next().ok_or_else(channel::ended)
}

/// Makes a network by address translation.
///
/// # Errors
/// As [`crate::nat::make`]; or the starter has ended.
pub(super) fn make_nat(settings: &NatSettings) -> io::Result<NatLink> {
    let (answer, fds) = ask(&Request::MakeNat(settings.clone()), &[])?;
    match (answer, fds.into_iter().next()) {
        (Answer::Nat { has_v6 }, Some(tap)) => Ok(NatLink { tap, has_v6 }),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn holder(request: &Request, beside: &[BorrowedFd<'_>]) -> Option<Holder> {
    match ask(request, beside) {
        Ok((Answer::Holder(holder), _)) => holder,
        _ => None,
    }
}

/// Tells the starter that nobody will ask for the status of a program.
///
/// # Errors
/// The starter has ended.
pub(super) fn detach(pid: u32) -> io::Result<()> {
    ask(&Request::Detach { pid }, &[]).map(drop)
}

fn ask(request: &Request, beside: &[BorrowedFd<'_>]) -> io::Result<(Answer, Vec<OwnedFd>)> {
    let processes = BESIDE.get().ok_or_else(channel::ended)?;
    processes.wake();
    let mut channel = match request {
        Request::Start(_)
        | Request::StatusOf { .. }
        | Request::Detach { .. }
        | Request::HolderOfLock
        | Request::HolderOfTap { .. }
        | Request::HolderOfPort { .. }
        | Request::HostNetwork
        | Request::StartResolver
        | Request::MakeNat(_) => lock(&processes.starter),
        _ => lock(&processes.opener),
    };
    channel.ask(request, beside)
}
