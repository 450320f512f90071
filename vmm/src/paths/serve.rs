//! The processes beside the VM's: the opener and the starter.
//!
//! ```text
//!   the VM's process ── fork ──> the opener ── clone(CLONE_PARENT) ──> the starter
//!                                 calls with paths, under its filter     other programs, without a filter
//! ```
//!
//! Programs inherit filters, and passt could not live with them. The starter therefore has none, and does
//! nothing else.
//!
//! A new VM makes no request before its guest runs in most cases. The opener sleeps until the first one, or
//! for some milliseconds, and then confines itself and makes the starter: its work beside that of a restore
//! made the restore slower.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Seek};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::slice;

use rustix::event::{PollFd, PollFlags, poll};
use serde::Serialize;

use super::call::{self, PathCall};
use super::message::{self, Answer, Request};
use super::program::ProgramPattern;
use super::rules::{Bounds, Pinned, Rules};
use super::started::Started;
use crate::error::{Error, Result, report};
use crate::nat::{self, NatLink, NatSettings};
use crate::resolver::{self, HostView};
use crate::{holders, host_network};

/// An answer, and the descriptor beside it. Absent for a request without one.
type Answered = io::Result<Option<(Answer, Option<OwnedFd>)>>;

/// Numbers of the sockets, after the standard streams.
const OPENER: i32 = 3;
const STARTER: i32 = 4;
/// The name of the opener.
const OPENER_NAME: &CStr = c"volt-opener";
/// The name of a resolver.
const RESOLVER_NAME: &CStr = c"volt-resolver";
/// The socket that wakes the opener.
const WAKE: i32 = 5;

/// The duties of the processes beside the VM's.
pub(crate) struct Duties<'a> {
    /// Called by the opener first. The starter inherits its effect.
    pub harden: fn() -> Result<()>,
    /// Called by the opener before it serves.
    pub confine: fn(),
    /// Called by a resolver before it serves.
    pub confine_resolver: fn(),
    /// The files that the opener may open.
    pub bounds: Option<&'a Bounds>,
    /// Makes the kernel keep the opener within its bounds.
    pub bound: fn(&Bounds),
    /// The programs that the starter may start at any time.
    pub programs: &'a [ProgramPattern],
    /// Whether the starter starts no others, also before the guest runs.
    pub these_programs_only: bool,
}

/// The descriptors of the opener and the starter.
pub(super) struct Ends {
    /// The socket of the opener.
    pub opener: OwnedFd,
    /// The socket of the starter.
    pub starter: OwnedFd,
    /// A socket with a message once there is a request.
    pub wake: OwnedFd,
}

/// Runs the opener and the starter. The process was forked just now, and has one thread.
pub(super) fn run(ends: &Ends, duties: &Duties<'_>) -> ! {
    let &Duties { harden, confine, confine_resolver, bounds, bound, programs, these_programs_only } = duties;
    let prepared = occupy_low_numbers(ends).and_then(|()| {
        block_signals();
        harden()
    });
    if let Err(error) = prepared {
        log::error!("the process that opens files ends: {}", report(&error));
        // SAFETY: ends the process without the handlers that its parent registered.
        unsafe { libc::_exit(1) }
    }
    rename(OPENER_NAME);
    sleep_until_woken();
    // SAFETY: this process has one thread, so no lock is held in the child. Without CLONE_VM it runs on its
    // own copy of the stack.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_PARENT | libc::SIGCHLD, 0, 0, 0, 0) };
    if pid == 0 {
        rename(holders::STARTER);
        let programs = Started::allowing(programs, these_programs_only);
        serve_and_exit(STARTER, OPENER, Starter::new(programs, confine_resolver));
    }
    confine();
    let rules = Rules::new(bounds);
    bounds.iter().filter(|bounds| bounds.from_start).for_each(|bounds| bound(bounds));
    // Without a starter, whoever asks it reads the end of the socket.
    serve_and_exit(OPENER, STARTER, Opener { rules, bounds, bound });
}

/// Leaves the three descriptors open, and standard error. A descriptor of the VM would stay open after the
/// VM: with the VM's end of a socket, this process would never read its end.
///
/// # Errors
/// The host refuses a descriptor.
fn occupy_low_numbers(Ends { opener, starter, wake }: &Ends) -> Result<()> {
    /// Above all three numbers.
    const ABOVE: i32 = WAKE + 1;
    // SAFETY: the child owns copies of all descriptors, and uses none but these. They are not used under
    // their old numbers afterwards. No file that is opened later gets the number of a standard stream.
    unsafe {
        let above = |end: &OwnedFd| libc::fcntl(end.as_raw_fd(), libc::F_DUPFD_CLOEXEC, ABOVE);
        for (copy, number) in [opener, starter, wake].map(above).into_iter().zip([OPENER, STARTER, WAKE]) {
            if copy < 0 || libc::dup3(copy, number, libc::O_CLOEXEC) < 0 {
                return Err(Error::host("keep its sockets", io::Error::last_os_error()));
            }
        }
        if libc::syscall(libc::SYS_close_range, ABOVE, libc::c_uint::MAX, 0) < 0 {
            return Err(Error::host("close the descriptors of the VM", io::Error::last_os_error()));
        }
        let mut null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        if null < 0 {
            // A root directory may lack it.
            null = libc::memfd_create(c"null".as_ptr(), libc::MFD_CLOEXEC);
        }
        if null < 0 || libc::dup2(null, 0) < 0 || libc::dup2(null, 1) < 0 {
            return Err(Error::host("close the console", io::Error::last_os_error()));
        }
        libc::close(null);
    }
    Ok(())
}

/// Sleeps until there is a request, at most as long as a restore takes. Ends this process if the VM's has
/// ended before.
fn sleep_until_woken() {
    /// In milliseconds.
    const LONGEST: i32 = 20;
    // SAFETY: `WAKE` is open since `occupy_low_numbers` and not used afterwards. poll(2) reads and writes one
    // entry, and read(2) writes one byte.
    unsafe {
        let mut entry = libc::pollfd { fd: WAKE, events: libc::POLLIN, revents: 0 };
        let mut byte = 0_u8;
        if libc::poll(&raw mut entry, 1, LONGEST) > 0 && libc::read(WAKE, (&raw mut byte).cast(), 1) < 1 {
            libc::_exit(0);
        }
        libc::close(WAKE);
    }
}

/// Names this process in `/proc/self/comm` and `/proc/self/cmdline`, so that whoever looks for a VM by its
/// arguments finds one process.
fn rename(name: &CStr) {
    let _ = rustix::thread::set_name(name);
    let Some((start, end)) = place_of_arguments() else { return };
    // SAFETY: the kernel put the arguments there, and nothing reads them in this process.
    let arguments = unsafe { slice::from_raw_parts_mut(start as *mut u8, end - start) };
    arguments.fill(0);
    arguments.iter_mut().zip(name.to_bytes()).for_each(|(to, byte)| *to = *byte);
}

/// Returns where the process's arguments start and end in memory (`arg_start` and `arg_end` of
/// proc_pid_stat(5), the fields 48 and 49).
fn place_of_arguments() -> Option<(usize, usize)> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The second field, a name in parentheses, may have any character.
    let (_, from_third) = stat.rsplit_once(')')?;
    let mut fields = from_third.split_ascii_whitespace().skip(48 - 3);
    let (start, end) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    (0 < start && start < end).then_some((start, end))
}

/// Blocks all signals but that of a forbidden call. The end of these processes is that of the VM's, also when
/// a terminal sends a signal to all.
fn block_signals() {
    // SAFETY: sigfillset initialises the set, and a null pointer for the old mask is allowed.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigdelset(&raw mut all, libc::SIGSYS);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
    }
}

/// The duties of a process beside the VM's.
trait Server {
    fn answer(&mut self, request: Request, beside: Vec<OwnedFd>) -> Answered;

    /// Called before each request is received.
    fn before_request(&mut self, _socket: BorrowedFd<'_>) {}
}

/// Answers the requests of a socket until its other end is closed. Closes the socket `other` first.
fn serve_and_exit(socket: i32, other: i32, mut server: impl Server) -> ! {
    // SAFETY: `other` is not used in this process. `socket` is open since `occupy_low_numbers`, and never
    // closed.
    let socket = unsafe {
        libc::close(other);
        BorrowedFd::borrow_raw(socket)
    };
    while serve_one(socket, &mut server) {}
    // SAFETY: ends the process without the handlers that its parent registered.
    unsafe { libc::_exit(0) }
}

/// Answers a request. Returns whether there may be more.
fn serve_one(socket: BorrowedFd<'_>, server: &mut impl Server) -> bool {
    server.before_request(socket);
    let (number, answered) = match message::receive::<(u64, Request)>(socket) {
        Ok(Some(((number, request), fds))) => (Some(number), server.answer(request, fds)),
        // The request did not arrive whole, for example because it was too long.
        Err(error) if error.raw_os_error().is_none() => (None, Err(error)),
        Ok(None) | Err(_) => return false,
    };
    let (answer, beside) = match answered {
        Ok(Some(answer)) => answer,
        Ok(None) => return true,
        Err(error) => (Answer::failed(&error), None),
    };
    let beside: Vec<_> = beside.iter().map(AsFd::as_fd).collect();
    let send = |answer, beside: &[_]| message::send(socket, &(number, answer), beside);
    // The host may refuse to send a descriptor, for example because too many are on their way.
    send(answer, &beside).or_else(|error| send(Answer::failed(&error), &[])).is_ok()
}

/// Starts programs.
struct Starter {
    programs: Started,
    /// Readable once a program has ended (signalfd(2)). Without it, detached ones stay zombies.
    ended: Option<OwnedFd>,
    confine_resolver: fn(),
    networks: Networks,
}

/// Whether networks by address translation are made: once the guest runs, for a VM that has one.
#[derive(Clone, Copy, Debug, Default)]
struct Networks {
    is_sealed: bool,
    has_one: bool,
}

impl Networks {
    fn make(&mut self, settings: &NatSettings) -> io::Result<NatLink> {
        if self.is_sealed && !self.has_one {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        self.has_one = true;
        nat::make(settings)
    }
}

impl Starter {
    fn new(programs: Started, confine_resolver: fn()) -> Self {
        // SAFETY: sigemptyset initialises the set. The call returns a new descriptor without another owner.
        let ended = unsafe {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGCHLD);
            let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
        };
        Self { programs, ended, confine_resolver, networks: Networks::default() }
    }
}

impl Server for Starter {
    fn answer(&mut self, request: Request, beside: Vec<OwnedFd>) -> Answered {
        match request {
            Request::Greet => Ok(Some((Answer::Done, None))),
            Request::Start(start) => {
                let (pid, handle) = self.programs.start(start, beside)?;
                Ok(Some((Answer::Started { pid }, Some(handle))))
            }
            Request::StatusOf { pid } => {
                Ok(Some((Answer::Ended { status: self.programs.status_of(pid)?.into_raw() }, None)))
            }
            Request::Detach { pid } => {
                self.programs.detach(pid)?;
                Ok(Some((Answer::Done, None)))
            }
            Request::HolderOfLock => {
                let file = beside.into_iter().next().ok_or(io::ErrorKind::InvalidInput)?;
                Ok(Some((Answer::Holder(holders::of_lock(&file.into())), None)))
            }
            Request::HolderOfPort { port } => Ok(Some((Answer::Holder(holders::of_port(port)), None))),
            Request::HostNetwork => Ok(Some((Answer::Done, Some(as_file(&host_network::read()?)?)))),
            Request::StartResolver => Ok(Some((Answer::Done, Some(start_resolver(self.confine_resolver)?)))),
            Request::MakeNat(settings) => {
                let NatLink { tap, has_v6 } = self.networks.make(&settings)?;
                Ok(Some((Answer::Nat { has_v6 }, Some(tap))))
            }
            Request::HolderOfTap { name } => Ok(Some((Answer::Holder(holders::of_tap(&name)), None))),
            Request::AllowProgram(program) => {
                self.programs.allow(program);
                Ok(None)
            }
            Request::Seal => {
                self.networks.is_sealed = true;
                self.programs.seal();
                Ok(None)
            }
            _ => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }

    /// Takes the statuses of detached programs until a request arrives.
    fn before_request(&mut self, socket: BorrowedFd<'_>) {
        let Some(ended) = &self.ended else { return };
        loop {
            let mut ready =
                [PollFd::from_borrowed_fd(socket, PollFlags::IN), PollFd::new(ended, PollFlags::IN)];
            let polled = poll(&mut ready, None);
            if polled.is_err() || !ready[0].revents().is_empty() {
                return;
            }
            // One signal may stand for several programs, so what it tells is not used.
            let _ = rustix::io::read(ended, &mut [0; size_of::<libc::signalfd_siginfo>()]);
            self.programs.reap();
        }
    }
}

/// A file in memory with a message that may be too long for the socket, at its start.
fn as_file(message: &impl Serialize) -> io::Result<OwnedFd> {
    let file = File::from(rustix::fs::memfd_create("answer", rustix::fs::MemfdFlags::CLOEXEC)?);
    serde_json::to_writer(&file, message)?;
    (&file).rewind()?;
    Ok(file.into())
}

/// Forks a resolver. Returns the device's end of its socket. The process has no parent that waits for it: it
/// is a child of one that ends at once.
fn start_resolver(confine: fn()) -> io::Result<OwnedFd> {
    let (near, far) = resolver::socket()?;
    // SAFETY: this process has one thread, so no lock is held in the children. They make system calls until
    // they have left the descriptors of this one, and end without the handlers of their ancestors.
    unsafe {
        match libc::fork() {
            -1 => return Err(io::Error::last_os_error()),
            0 => match libc::fork() {
                0 => resolve_and_exit(&far, confine),
                -1 => libc::_exit(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EAGAIN)),
                _ => libc::_exit(0),
            },
            child => {
                let mut status = 0;
                while libc::waitpid(child, &raw mut status, 0) < 0
                    && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
                {}
                // The child exits with the number of its error.
                match ExitStatus::from_raw(status).code() {
                    Some(0) => {}
                    Some(errno) => return Err(io::Error::from_raw_os_error(errno)),
                    None => return Err(io::Error::other("the process that forks the resolver was killed")),
                }
            }
        }
    }
    Ok(near)
}

/// Serves as a resolver at this socket.
fn resolve_and_exit(socket: &OwnedFd, confine: fn()) -> ! {
    // SAFETY: nothing of this process uses the descriptors that are closed. The socket gets the number of the
    // opener's, which this process closed.
    let socket = unsafe {
        libc::dup3(socket.as_raw_fd(), OPENER, libc::O_CLOEXEC);
        libc::syscall(libc::SYS_close_range, OPENER + 1, libc::c_uint::MAX, 0);
        OwnedFd::from_raw_fd(OPENER)
    };
    rename(RESOLVER_NAME);
    let host = HostView::open(&socket);
    confine();
    resolver::run(&socket, host.as_ref());
    // SAFETY: as in `start_resolver`.
    unsafe { libc::_exit(0) }
}

/// Makes calls with paths, and connects sockets.
struct Opener<'a> {
    rules: Rules,
    bounds: Option<&'a Bounds>,
    bound: fn(&Bounds),
}

impl Server for Opener<'_> {
    fn answer(&mut self, request: Request, beside: Vec<OwnedFd>) -> Answered {
        match request {
            Request::Greet => Ok(Some((Answer::Done, None))),
            Request::Make { path, call } => {
                answer_call(&mut self.rules, path.into(), call, beside.first()).map(Some)
            }
            Request::Allow { path } => {
                let number = self.rules.allow(beside.into_iter().next(), &PathBuf::from(path))?;
                Ok(Some((Answer::Allowed(number), None)))
            }
            Request::AllowPager { path } => {
                self.rules.allow_pager(path.into());
                Ok(None)
            }
            Request::Own { file } => {
                self.rules.add_own(file);
                Ok(None)
            }
            Request::Seal => {
                self.rules.seal();
                if let Some(bounds) = self.bounds.filter(|bounds| !bounds.from_start) {
                    let mut bounds = bounds.clone();
                    bounds.sockets.extend_from_slice(self.rules.made());
                    (self.bound)(&bounds);
                }
                Ok(None)
            }
            Request::Connect { number, port } => {
                Ok(Some((Answer::Done, Some(self.rules.connect(number, port)?.into()))))
            }
            _ => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }
}

/// Makes a call for the VM's process.
fn answer_call(
    rules: &mut Rules,
    path: PathBuf,
    call: PathCall,
    beside: Option<&OwnedFd>,
) -> io::Result<(Answer, Option<OwnedFd>)> {
    let path = match beside {
        Some(file) if path.as_os_str().is_empty() => super::own_path(file),
        _ => path,
    };
    let at = beside.map(AsFd::as_fd);
    let (path, _parent) = match call {
        PathCall::ConnectToPager(kind) => {
            let (place, parent) = rules.place_of_pager(&path, kind)?;
            (place, Some(parent))
        }
        _ => (path, None),
    };
    let pinned = Pinned::new(at, path, call)?;
    rules.check(at, &pinned.path, &pinned.call)?;
    Ok(match pinned.call.make(at, &pinned.path)? {
        call::Answer::Done => (Answer::Done, None),
        call::Answer::Opened(file) => (Answer::Done, Some(file)),
        call::Answer::Path(path) => (Answer::Path(path), None),
        call::Answer::Text(text) => (Answer::Text(text), None),
        call::Answer::Listening { socket, file } => {
            rules.add_made(at, &pinned.path, file);
            (Answer::Listening { file }, Some(socket))
        }
    })
}
