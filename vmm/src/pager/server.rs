//! The pager's process: its socket, its VMs and its end.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType};

use super::list::{list, listed};
use super::message::{PagerRequest, PagerResponse, VERSION};
use super::place::{Claim, PagerPlace};
use crate::error::{Error, Result, report};
use crate::memory::PAGE;
use crate::memory::files::memfd::fresh;
use crate::memory::files::sealing::can_change;
use crate::memory::lazy::fault_service::Service;
use crate::memory::lazy::faults::{FaultHandler, Fetched};
use crate::memory::lazy::prefetch::PageRanges;
use crate::memory::lazy::served_vm::ServedVm;
use crate::memory::lazy::source::PageSource;
use crate::memory::lazy::userfault::Userfault;
use crate::packets::{receive, send};
use crate::paths;
use crate::sandbox::{ThreadKind, confine_this_thread};
use crate::sockets::peer_of;
use crate::sync::lock;
use crate::threads;

/// Length of the queue of connections.
const BACKLOG: i32 = 1024;
/// Number of further attempts to claim a place, and the time between them.
const LOOKS: u32 = 5;
const LOOK: Duration = Duration::from_millis(5);
/// Pause in accepting connections after the host lacked resources for one.
const BACK_OFF: Duration = Duration::from_millis(100);
/// Longest reason in a message, in bytes. The rest of a message is short.
const LONGEST_REASON: usize = 1024;

/// Serves the pack `source` at `place`, until no VM has been connected for `linger`. Returns at once if a
/// pager already runs. Calls `listening` once VMs can connect.
///
/// # Errors
/// The host refuses a socket, or resources for filling memory.
pub fn serve(
    place: &PagerPlace,
    source: &dyn Fn() -> Box<dyn PageSource>,
    linger: Duration,
    listening: impl FnOnce(),
) -> Result<()> {
    let mut claim = place.claim()?;
    for _ in 0..LOOKS {
        // Another process may have held the claim only for a check.
        if claim.is_none() {
            thread::sleep(LOOK);
            claim = place.claim()?;
        }
    }
    let Some(claim) = claim else { return Ok(()) };
    let server = Server::new(&claim, source)?;
    listening();
    place.remove_abandoned();
    confine_this_thread(ThreadKind::Worker);
    server.run(linger)
}

struct Server<'s> {
    listener: OwnedFd,
    source: &'s dyn Fn() -> Box<dyn PageSource>,
    /// The base that this pager made, for VMs that bring none.
    own: Option<Arc<Service>>,
    /// The bases that VMs brought from an earlier pager. Other VMs do not get them, because their content is
    /// not verified.
    adopted_bases: Vec<Arc<Service>>,
    clients: HashMap<i32, ConnectedVm>,
    /// Closed for a moment to accept and refuse a connection when no descriptor is left.
    spare: Option<OwnedFd>,
    /// Time until which no connection is accepted.
    rests_until: Option<Instant>,
}

/// A connected VM.
struct ConnectedVm {
    socket: Arc<OwnedFd>,
    /// The service that fills its base, once it has asked for one.
    service: Option<Arc<Service>>,
    /// Its number in the service ([`Service::add`]).
    number: Option<u64>,
    /// The list of pages that it wants to be fetched ahead.
    ahead: Arc<OnceLock<PageRanges>>,
}

impl<'s> Server<'s> {
    fn new(claim: &Claim, source: &'s dyn Fn() -> Box<dyn PageSource>) -> Result<Self> {
        let path = claim.socket()?;
        let failed = |errno: Errno| Error::file("listen at", path.display(), errno);
        let address = SocketAddrUnix::new(path).map_err(failed)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(failed)?;
        rustix::net::bind(&listener, &address).map_err(failed)?;
        rustix::net::listen(&listener, BACKLOG).map_err(failed)?;
        let (adopted_bases, clients) = (Vec::new(), HashMap::new());
        Ok(Self { listener, source, own: None, adopted_bases, clients, spare: spare(), rests_until: None })
    }

    fn run(mut self, linger: Duration) -> Result<()> {
        loop {
            let rests = self.rests_until.is_some();
            let ready = self.wait(linger)?;
            if ready.is_empty() && self.clients.is_empty() && !rests {
                return Ok(());
            }
            for fd in ready {
                if fd == self.listener.as_raw_fd() {
                    self.accept();
                } else if let Err(why) = self.handle_request(fd) {
                    log::warn!("a VM is no longer served: {why}");
                    self.forget(fd);
                }
            }
        }
    }

    /// Waits for sockets to become readable. Returns none of them if no VM was connected for `linger`.
    fn wait(&mut self, linger: Duration) -> Result<Vec<i32>> {
        let rest = self.rests_until.take().map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = rest.or(self.clients.is_empty().then_some(linger)).map(|timeout| Timespec {
            tv_sec: timeout.as_secs().cast_signed(),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let timeout = timeout.as_ref();
        let sockets = self.clients.values().map(|client| client.socket.as_fd());
        let listener = Some(self.listener.as_fd()).filter(|_| rest.is_none());
        let mut fds: Vec<_> =
            sockets.chain(listener).map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        loop {
            match poll(&mut fds, timeout) {
                Err(Errno::INTR) => {}
                other => break other.map(drop).map_err(|errno| Error::host("wait for VMs", errno))?,
            }
        }
        Ok(fds.iter().filter(|fd| !fd.revents().is_empty()).map(|fd| fd.as_fd().as_raw_fd()).collect())
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match rustix::net::accept_with(&self.listener, flags) {
            Ok(socket) => socket,
            Err(Errno::MFILE | Errno::NFILE) => return self.refuse(flags),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
            // The connection stays in the queue, and would be reported again and again.
            Err(errno) => {
                log::warn!("a VM cannot connect: {errno}");
                self.rests_until = Some(Instant::now() + BACK_OFF);
                return;
            }
        };
        let own = rustix::process::geteuid().as_raw();
        let is_own = peer_of(&socket).is_ok_and(|peer| peer.user == own);
        if self.spare.is_none() {
            self.spare = spare();
        }
        if is_own {
            let client =
                ConnectedVm { socket: Arc::new(socket), service: None, number: None, ahead: Arc::default() };
            self.clients.insert(client.socket.as_raw_fd(), client);
        }
    }

    /// Accepts a connection with the last descriptor, tells the reason, and closes it.
    fn refuse(&mut self, flags: SocketFlags) {
        drop(self.spare.take());
        if let Ok(socket) = rustix::net::accept_with(&self.listener, flags) {
            let why = format!(
                "this pager has no descriptor left for another VM, with {} VMs: raise the limit of open \
                 files (RLIMIT_NOFILE)",
                self.clients.len()
            );
            log::warn!("a VM is refused: {why}");
            let _ = send(&socket, &PagerResponse::Refused(why), None, SendFlags::DONTWAIT);
        }
        self.spare = spare();
        if self.spare.is_none() {
            self.rests_until = Some(Instant::now() + BACK_OFF);
        }
    }

    fn forget(&mut self, fd: i32) {
        let Some(client) = self.clients.remove(&fd) else { return };
        let ConnectedVm { socket, service, number, ahead: _ } = client;
        if let (Some(service), Some(number)) = (&service, number) {
            service.remove(number);
        }
        // The VM waits for this end: from now on its memory is not touched.
        let _ = rustix::net::shutdown(&*socket, Shutdown::Both);
        drop((socket, service));
        self.drop_unused();
    }

    /// Drops the bases brought by VMs that have all gone. Uses a thread, because it waits for reads in
    /// progress.
    fn drop_unused(&mut self) {
        let unused = |service: &mut Arc<Service>| Arc::strong_count(service) == 1;
        let unused: Vec<_> = self.adopted_bases.extract_if(.., unused).collect();
        if unused.is_empty() {
            return;
        }
        let unused = Arc::new(Mutex::new(unused));
        let theirs = Arc::clone(&unused);
        if let Err(error) = threads::spawn(ThreadKind::Worker, "pager-drop", move || {
            drop(std::mem::take(&mut *lock(&theirs)))
        }) {
            log::debug!("cannot drop an unused base yet: {}", report(&error));
            self.adopted_bases.append(&mut lock(&unused));
        }
    }

    /// Handles a VM's request.
    fn handle_request(&mut self, fd: i32) -> std::result::Result<(), String> {
        let client = self.clients.get(&fd).ok_or("the VM is not connected")?;
        let socket = Arc::clone(&client.socket);
        let (ask, beside) = match receive::<PagerRequest>(&*socket, RecvFlags::DONTWAIT) {
            Ok(Some(message)) => message,
            Ok(None) => {
                self.forget(fd);
                return Ok(());
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                self.forget(fd);
                return Ok(());
            }
            // A served VM sends a descriptor only with a list of pages. This process may have no room for it.
            Err(error) if client.number.is_some() && is_no_message(&error) => {
                tell(&socket, &PagerResponse::NotPrefetched(shortened(error.to_string())), None);
                return Ok(());
            }
            Err(error) => {
                tell(&socket, &PagerResponse::Refused(shortened(error.to_string())), None);
                return Err(error.to_string());
            }
        };
        let done = match ask {
            PagerRequest::Base { version, memory_len } => {
                self.base(fd, version, memory_len, beside).map(Some)
            }
            PagerRequest::Serve { start, len } => self.begin(fd, start, len, beside).map(|()| None),
            PagerRequest::Complete => return self.complete(fd, socket),
            PagerRequest::Fetched => return self.fetched(fd, &socket),
            PagerRequest::Prefetch => return self.prefetch(fd, socket, beside),
            PagerRequest::Ping => {
                tell(&socket, &PagerResponse::Alive, None);
                return Ok(());
            }
        };
        let (answer, base) = match done {
            Ok(base) => (PagerResponse::Done, base),
            Err(why) => (PagerResponse::Refused(shortened(why)), None),
        };
        tell(&socket, &answer, base.as_deref());
        Ok(())
    }

    /// Returns the base that a VM brings, or the pager's own.
    fn base(
        &mut self,
        fd: i32,
        version: u32,
        len: u64,
        brought: Option<OwnedFd>,
    ) -> std::result::Result<Arc<File>, String> {
        if version != VERSION {
            return Err(format!("this pager speaks version {VERSION}, not {version}"));
        }
        let known = match &brought {
            None => self.own.as_ref(),
            Some(brought) => {
                self.own.iter().chain(&self.adopted_bases).find(|service| same_file(brought, &service.base()))
            }
        };
        let (known, is_own) = (known.map(Arc::clone), brought.is_none());
        let service = match known {
            Some(service) => service,
            None => Arc::new(self.make(len, brought).inspect_err(|why| log::error!("{why}"))?),
        };
        if service.filler().len() != len {
            return Err(format!("the base has {} bytes, not {len}", service.filler().len()));
        }
        let client = self.clients.get_mut(&fd).ok_or("the VM is not connected")?;
        if client.number.is_some() {
            return Err("the VM is served already".to_owned());
        }
        client.service = Some(Arc::clone(&service));
        let is_known = self.own.iter().chain(&self.adopted_bases).any(|other| Arc::ptr_eq(other, &service));
        match (is_known, is_own) {
            (true, _) => {}
            (false, true) => self.own = Some(Arc::clone(&service)),
            (false, false) => self.adopted_bases.push(Arc::clone(&service)),
        }
        Ok(service.base())
    }

    fn make(&self, len: u64, brought: Option<OwnedFd>) -> std::result::Result<Service, String> {
        let source = (self.source)();
        if source.memory_len() != len {
            return Err(format!("the base has {} bytes, not {len}", source.memory_len()));
        }
        let memfd = match brought {
            None => fresh(len).map_err(|error| report(&error))?,
            Some(brought) => adopted(&brought, len)?,
        };
        let private = Mode::RUSR | Mode::WUSR;
        rustix::fs::fchmod(&memfd, private)
            .map_err(|errno| format!("cannot restrict the memory to this user: {errno}"))?;
        // Not against writing, which the next pager needs.
        let seals = rustix::fs::SealFlags::SHRINK | rustix::fs::SealFlags::GROW;
        // A base that is sealed against all changes is complete.
        if can_change(&memfd).map_err(|error| error.to_string())? {
            rustix::fs::fcntl_add_seals(&memfd, seals)
                .map_err(|errno| format!("cannot seal the memory: {errno}"))?;
        }
        Service::over(memfd, source).map_err(|error| report(&error))
    }

    fn begin(
        &mut self,
        fd: i32,
        start: u64,
        len: u64,
        beside: Option<OwnedFd>,
    ) -> std::result::Result<(), String> {
        let client = self.clients.get_mut(&fd).ok_or("the VM is not connected")?;
        let service = client.service.as_ref().ok_or("the VM has not asked for a base")?;
        if client.number.is_some() {
            return Err("the VM is served already".to_owned());
        }
        let memory = service.filler().len();
        if len != memory || !start.is_multiple_of(PAGE) || start.checked_add(len).is_none() {
            return Err(format!(
                "the VM's memory of {len} bytes at {start:#x} does not fit a base of {memory} bytes"
            ));
        }
        let fd = beside.filter(is_userfaultfd).ok_or("the VM sent no userfaultfd")?;
        // A read of it must never block.
        let flags = rustix::fs::fcntl_getfl(&fd)
            .and_then(|flags| rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK));
        flags.map_err(|errno| format!("the VM's userfaultfd cannot be used: {errno}"))?;
        let userfault = Arc::new(Userfault::of_other(fd));
        let socket = Arc::clone(&client.socket);
        let unreadable = move |Range { start, end }: Range<u64>, error: &Error| {
            let told = PagerResponse::Unreadable { start, end, why: shortened(report(error)) };
            if let Err(error) = send(&*socket, &told, None, SendFlags::DONTWAIT) {
                log::error!("cannot tell a VM that its memory is damaged, so the VM keeps waiting: {error}");
            }
        };
        let served = ServedVm::new(Arc::clone(&userfault), start, Box::new(unreadable));
        // Refuses a range that cannot be woken. Checked before the service starts: the VM must not be told of
        // both.
        userfault
            .wake(start, len)
            .map_err(|errno| format!("threads that wait for the VM's memory cannot be woken: {errno}"))?;
        // A userfaultfd that can wake has agreed on its features, which never change from then on.
        if has_events(&userfault)
            .map_err(|error| format!("the VM's userfaultfd cannot be examined: {error}"))?
        {
            return Err("the VM's userfaultfd reports events other than page faults".to_owned());
        }
        // The VM may have several vCPUs. The service's first thread starts a second one while the restore
        // continues, before it can take a waiting fault.
        service.expect_several();
        let number = service.add(served).map_err(|error| report(&error))?;
        // Faults that an earlier pager had read come again.
        if let Err(errno) = userfault.wake(start, len) {
            service.remove(number);
            return Err(format!("threads that wait for the VM's memory cannot be woken: {errno}"));
        }
        client.number = Some(number);
        Ok(())
    }

    fn complete(&self, fd: i32, socket: Arc<OwnedFd>) -> std::result::Result<(), String> {
        self.apart(fd, socket, PagerResponse::Refused, |service| match service.complete_and_seal() {
            Ok(()) => Some(PagerResponse::Done),
            Err(error) => Some(PagerResponse::Refused(shortened(report(&error)))),
        })
    }

    fn fetched(&self, fd: i32, socket: &OwnedFd) -> std::result::Result<(), String> {
        let client = self.clients.get(&fd).ok_or("the VM is not connected")?;
        let fetched = client.service.as_ref().and_then(|service| service.fetched(client.ahead.get()));
        let fetched = fetched.ok_or("the VM has not asked for a base")?;
        let Fetched { chunk_len, touched, ahead, prefetch, answered: _ } = fetched;
        let answered = client.service.as_ref().zip(client.number);
        let answered = answered.and_then(|(service, number)| service.answered(number)).map(Box::new);
        let answer = PagerResponse::Fetched { chunk_len, touched, prefetch, answered };
        match list(&ahead) {
            Ok(list) => tell(socket, &answer, Some(&list)),
            // The VM waits a second for the answer and then continues without it.
            Err(error) => log::warn!("cannot send a VM its list of chunks: {error}"),
        }
        Ok(())
    }

    fn prefetch(
        &self,
        fd: i32,
        socket: Arc<OwnedFd>,
        list: Option<OwnedFd>,
    ) -> std::result::Result<(), String> {
        let list = list.ok_or("the VM sent no list of pages")?;
        let ahead = self.clients.get(&fd).map(|client| Arc::clone(&client.ahead)).unwrap_or_default();
        self.apart(fd, socket, PagerResponse::NotPrefetched, move |service| {
            let runs = listed(&list.into(), service.filler().len()).map(PageRanges::from);
            let begun = runs.and_then(|runs| {
                let runs = ahead.get_or_init(|| runs);
                service.prefetch(runs).map_err(|error| report(&error))
            });
            begun.err().map(|why| PagerResponse::NotPrefetched(shortened(why)))
        })
    }

    /// Handles a VM's request on a thread of its own, so that other VMs are heard. Sends `refused` if the
    /// host has no thread.
    fn apart(
        &self,
        fd: i32,
        socket: Arc<OwnedFd>,
        refused: fn(String) -> PagerResponse,
        act: impl FnOnce(&Service) -> Option<PagerResponse> + Send + 'static,
    ) -> std::result::Result<(), String> {
        let service = self.clients.get(&fd).and_then(|client| client.service.clone());
        let service = service.ok_or("the VM has not asked for a base")?;
        let theirs = Arc::clone(&socket);
        let work = move || {
            if let Some(answer) = act(&service) {
                tell(&theirs, &answer, None);
            }
        };
        if let Err(error) = threads::spawn(ThreadKind::Worker, "pager-act", work) {
            let why = format!("the pager cannot handle the request: {}", report(&error));
            tell(&socket, &refused(shortened(why)), None);
        }
        Ok(())
    }
}

/// Answers a VM. A VM whose socket is full misses the answer and is still served. The end of its socket tells
/// when it is gone.
fn tell(socket: &OwnedFd, answer: &PagerResponse, beside: Option<&File>) {
    let beside = beside.map(|file| file.as_fd());
    if let Err(error) = send(socket, answer, beside, SendFlags::DONTWAIT) {
        log::debug!("cannot answer a VM: {error}");
    }
}

/// Whether a packet was not a message, or only a part of one.
fn is_no_message(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}

/// A descriptor to close when no other is left.
fn spare() -> Option<OwnedFd> {
    paths::open_to_read("/dev/null").ok().map(OwnedFd::from)
}

/// Opens a VM's memfd for filling.
fn adopted(brought: &OwnedFd, len: u64) -> std::result::Result<File, String> {
    let target = paths::path_of(brought).map_err(|error| error.to_string())?;
    if !target.as_os_str().as_encoded_bytes().starts_with(b"/memfd:volt-ram") {
        return Err("the descriptor that the VM sent is not a VM's memory".to_owned());
    }
    let memfd = paths::reopen(brought, OFlags::RDWR)
        .map_err(|error| format!("the memory that the VM sent cannot be filled: {error}"))?;
    let found = memfd.metadata().map_err(|error| error.to_string())?.len();
    if found == len {
        Ok(memfd)
    } else {
        Err(format!("the memory that the VM sent has {found} bytes, not {len}"))
    }
}

fn same_file(one: &OwnedFd, other: &File) -> bool {
    let identity = |fd| rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino)).ok();
    identity(one.as_fd()).is_some_and(|one| Some(one) == identity(other.as_fd()))
}

fn is_userfaultfd(fd: &OwnedFd) -> bool {
    paths::path_of(fd).is_ok_and(|target| target.as_os_str() == "anon_inode:[userfaultfd]")
}

/// Whether a userfaultfd reports forks, or moved, removed or unmapped memory. Reading a fork event makes a
/// descriptor in this process, and the other process waits until each event is read (`userfaultfd_ctx_read`
/// of fs/userfaultfd.c).
fn has_events(userfault: &Userfault) -> io::Result<bool> {
    /// `UFFD_FEATURE_EVENT_FORK`, `_REMAP`, `_REMOVE` and `_UNMAP`.
    const EVENTS: u64 = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 6;
    let info = paths::info_of(userfault)?;
    // The line is "API:", then the version, the enabled features and the kernel's features, separated by
    // colons.
    let features = info.lines().find_map(|line| line.strip_prefix("API:")?.trim().split(':').nth(1));
    let features = features.and_then(|features| u64::from_str_radix(features, 16).ok());
    features.map(|features| features & EVENTS != 0).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn shortened(mut why: String) -> String {
    let end = (0..=LONGEST_REASON.min(why.len())).rev().find(|end| why.is_char_boundary(*end));
    why.truncate(end.unwrap_or(0));
    why
}
