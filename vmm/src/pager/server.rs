//! The pager: its socket, its VMs, its end.

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
use super::message::{Answer, Ask, VERSION, receive, send};
use super::place::{Claim, PagerPlace};
use crate::error::{Error, Result, report};
use crate::memory::PAGE;
use crate::memory::files::memfd::fresh;
use crate::memory::files::sealing::can_change;
use crate::memory::lazy::fault_service::{ServedVm, Service};
use crate::memory::lazy::faults::{Fetched, Paging};
use crate::memory::lazy::prefetch::Runs;
use crate::memory::lazy::source::PageSource;
use crate::memory::lazy::userfault::Userfault;
use crate::sync::lock;
use crate::threads;

/// Connections that wait to be taken.
const BACKLOG: i32 = 1024;
/// How often a claimed place is looked at again, and when.
const LOOKS: u32 = 5;
const LOOK: Duration = Duration::from_millis(5);
/// How long no connection is taken after the host had nothing left for one.
const BACK_OFF: Duration = Duration::from_millis(100);
/// Bytes of a reason; the rest of the message is short.
const LONGEST_REASON: usize = 1024;

/// Serves `source`, the pack that has this place, until no VM has wanted anything for `linger`. Returns at once if there is a pager already.
/// `listening` is called once VMs can connect.
///
/// # Errors
/// The host refuses a socket, or something that is needed to fill memory.
pub fn serve(
    place: &PagerPlace,
    source: &dyn Fn() -> Box<dyn PageSource>,
    linger: Duration,
    listening: impl FnOnce(),
) -> Result<()> {
    let mut claim = place.claim()?;
    for _ in 0..LOOKS {
        // Somebody may only have looked whether it is claimed.
        if claim.is_none() {
            thread::sleep(LOOK);
            claim = place.claim()?;
        }
    }
    let Some(claim) = claim else { return Ok(()) };
    let server = Server::new(&claim, source)?;
    listening();
    place.remove_abandoned();
    server.run(linger)
}

struct Server<'s> {
    listener: OwnedFd,
    source: &'s dyn Fn() -> Box<dyn PageSource>,
    /// The base that this pager has made, for VMs that bring none.
    own: Option<Arc<Service>>,
    /// Those that VMs have brought, which were there before this pager. Nobody else gets one: it may hold
    /// anything.
    brought: Vec<Arc<Service>>,
    clients: HashMap<i32, ConnectedVm>,
    /// Given up for a moment to refuse a connection where no descriptor is left.
    spare: Option<OwnedFd>,
    /// Until when no connection is taken.
    rests_until: Option<Instant>,
}

/// A VM that is connected.
struct ConnectedVm {
    socket: Arc<OwnedFd>,
    /// Who fills its base, once it has asked for one.
    service: Option<Arc<Service>>,
    /// What [`Service::add`] said.
    number: Option<u64>,
    /// What it would have fetched ahead.
    ahead: Arc<OnceLock<Runs>>,
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
        let (brought, clients) = (Vec::new(), HashMap::new());
        Ok(Self { listener, source, own: None, brought, clients, spare: spare(), rests_until: None })
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
                } else if let Err(why) = self.hear(fd) {
                    log::warn!("a VM is not served any more: {why}");
                    self.forget(fd);
                }
            }
        }
    }

    /// Who has something to say. Nobody, after `linger`, if nobody is connected.
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
            // It waits in the queue meanwhile, and would be reported as ready again and again.
            Err(errno) => {
                log::warn!("a VM cannot connect: {errno}");
                self.rests_until = Some(Instant::now() + BACK_OFF);
                return;
            }
        };
        let is_own = rustix::net::sockopt::socket_peercred(&socket)
            .is_ok_and(|peer| peer.uid == rustix::process::geteuid());
        if self.spare.is_none() {
            self.spare = spare();
        }
        if is_own {
            let client =
                ConnectedVm { socket: Arc::new(socket), service: None, number: None, ahead: Arc::default() };
            self.clients.insert(client.socket.as_raw_fd(), client);
        }
    }

    /// Takes a connection where no descriptor is left, and says so to whoever made it.
    fn refuse(&mut self, flags: SocketFlags) {
        drop(self.spare.take());
        if let Ok(socket) = rustix::net::accept_with(&self.listener, flags) {
            let why = format!(
                "this pager has no descriptor left for another VM, with {} of them: raise the limit of open files \
                 (RLIMIT_NOFILE)",
                self.clients.len()
            );
            log::warn!("a VM is refused: {why}");
            let _ = send(&socket, &Answer::Refused(why), None, SendFlags::DONTWAIT);
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
        // Now that nothing is done to the VM's memory any more: it waits for this.
        let _ = rustix::net::shutdown(&*socket, Shutdown::Both);
        drop((socket, service));
        self.drop_unused();
    }

    /// Drops the bases that VMs have brought and that nobody has any more: they are memory for nothing. On a
    /// thread of its own, for it waits for what is being read.
    fn drop_unused(&mut self) {
        let unused = |service: &mut Arc<Service>| Arc::strong_count(service) == 1;
        let unused: Vec<_> = self.brought.extract_if(.., unused).collect();
        if unused.is_empty() {
            return;
        }
        let unused = Arc::new(Mutex::new(unused));
        let theirs = Arc::clone(&unused);
        if let Err(error) = threads::spawn("pager-drop", move || drop(std::mem::take(&mut *lock(&theirs)))) {
            log::debug!("a base that no VM has is kept for now: {}", report(&error));
            self.brought.append(&mut lock(&unused));
        }
    }

    /// Does what a VM asks for.
    fn hear(&mut self, fd: i32) -> std::result::Result<(), String> {
        let client = self.clients.get(&fd).ok_or("it is not connected")?;
        let socket = Arc::clone(&client.socket);
        let (ask, beside) = match receive::<Ask>(&*socket, RecvFlags::DONTWAIT) {
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
            // A VM that is served sends a descriptor only with a list of pages. This process may have no room
            // for it.
            Err(error) if client.number.is_some() && is_no_message(&error) => {
                tell(&socket, &Answer::NotPrefetched(shortened(error.to_string())), None);
                return Ok(());
            }
            Err(error) => {
                tell(&socket, &Answer::Refused(shortened(error.to_string())), None);
                return Err(error.to_string());
            }
        };
        let done = match ask {
            Ask::Base { version, memory_len } => self.base(fd, version, memory_len, beside).map(Some),
            Ask::Serve { start, len } => self.begin(fd, start, len, beside).map(|()| None),
            Ask::Complete => return self.complete(fd, socket),
            Ask::Fetched => return self.fetched(fd, &socket),
            Ask::Prefetch => return self.prefetch(fd, socket, beside),
            Ask::Ping => {
                tell(&socket, &Answer::Alive, None);
                return Ok(());
            }
        };
        let (answer, base) = match done {
            Ok(base) => (Answer::Done, base),
            Err(why) => (Answer::Refused(shortened(why)), None),
        };
        tell(&socket, &answer, base.as_deref());
        Ok(())
    }

    /// The base that a VM brings, or one for those that bring none.
    fn base(
        &mut self,
        fd: i32,
        version: u32,
        len: u64,
        brought: Option<OwnedFd>,
    ) -> std::result::Result<Arc<File>, String> {
        if version != VERSION {
            return Err(format!("this pager speaks version {VERSION}, and not {version}"));
        }
        let known = match &brought {
            None => self.own.as_ref(),
            Some(brought) => {
                self.own.iter().chain(&self.brought).find(|service| same_file(brought, &service.base()))
            }
        };
        let (known, is_own) = (known.map(Arc::clone), brought.is_none());
        let service = match known {
            Some(service) => service,
            None => Arc::new(self.make(len, brought).inspect_err(|why| log::error!("{why}"))?),
        };
        if service.filler().len() != len {
            return Err(format!("its base is {} bytes long, and not {len}", service.filler().len()));
        }
        let client = self.clients.get_mut(&fd).ok_or("it is not connected")?;
        if client.number.is_some() {
            return Err("it is served already".to_owned());
        }
        client.service = Some(Arc::clone(&service));
        let is_known = self.own.iter().chain(&self.brought).any(|other| Arc::ptr_eq(other, &service));
        match (is_known, is_own) {
            (true, _) => {}
            (false, true) => self.own = Some(Arc::clone(&service)),
            (false, false) => self.brought.push(Arc::clone(&service)),
        }
        Ok(service.base())
    }

    fn make(&self, len: u64, brought: Option<OwnedFd>) -> std::result::Result<Service, String> {
        let source = (self.source)();
        if source.memory_len() != len {
            return Err(format!("its base is {} bytes long, and not {len}", source.memory_len()));
        }
        let memfd = match brought {
            None => fresh(len).map_err(|error| report(&error))?,
            Some(brought) => adopted(&brought, len)?,
        };
        let private = Mode::RUSR | Mode::WUSR;
        rustix::fs::fchmod(&memfd, private)
            .map_err(|errno| format!("cannot close its memory to others: {errno}"))?;
        // Not against writing: the pager after this one must be able to.
        let seals = rustix::fs::SealFlags::SHRINK | rustix::fs::SealFlags::GROW;
        // What is sealed against all changes already is complete.
        if can_change(&memfd).map_err(|error| error.to_string())? {
            rustix::fs::fcntl_add_seals(&memfd, seals)
                .map_err(|errno| format!("cannot seal its memory: {errno}"))?;
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
        let client = self.clients.get_mut(&fd).ok_or("it is not connected")?;
        let service = client.service.as_ref().ok_or("no base was asked for")?;
        if client.number.is_some() {
            return Err("it is served already".to_owned());
        }
        let memory = service.filler().len();
        if len != memory || !start.is_multiple_of(PAGE) || start.checked_add(len).is_none() {
            return Err(format!("{len} bytes at {start:#x} cannot be memory over a base of {memory}"));
        }
        let fd = beside.filter(is_userfaultfd).ok_or("no userfaultfd was given")?;
        if has_events(&fd).map_err(|error| format!("its userfaultfd cannot be examined: {error}"))? {
            return Err("its userfaultfd reports other events than page faults".to_owned());
        }
        // A read of it must never wait.
        let flags = rustix::fs::fcntl_getfl(&fd)
            .and_then(|flags| rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK));
        flags.map_err(|errno| format!("its userfaultfd cannot be used: {errno}"))?;
        let userfault = Arc::new(Userfault::of_other(fd));
        let socket = Arc::clone(&client.socket);
        let unreadable = move |Range { start, end }: Range<u64>, error: &Error| {
            let told = Answer::Unreadable { start, end, why: shortened(report(error)) };
            if let Err(error) = send(&*socket, &told, None, SendFlags::DONTWAIT) {
                log::error!("a VM cannot be told that its memory is damaged, and waits: {error}");
            }
        };
        let served = ServedVm::new(Arc::clone(&userfault), start, Box::new(unreadable));
        // One that cannot be woken cannot be served. Not after it is served: it might be told both.
        userfault.wake(start, len).map_err(|errno| format!("it cannot be woken: {errno}"))?;
        // The VM may have several vCPUs. The service's own thread starts another one while the restore goes on,
        // before a fault that waits already can take it.
        service.expect_several();
        let number = service.add(served).map_err(|error| report(&error))?;
        // What a pager before this one had read comes again.
        if let Err(errno) = userfault.wake(start, len) {
            service.remove(number);
            return Err(format!("it cannot be woken: {errno}"));
        }
        client.number = Some(number);
        Ok(())
    }

    fn complete(&self, fd: i32, socket: Arc<OwnedFd>) -> std::result::Result<(), String> {
        self.apart(fd, socket, Answer::Refused, |service| match service.complete_and_seal() {
            Ok(()) => Some(Answer::Done),
            Err(error) => Some(Answer::Refused(shortened(report(&error)))),
        })
    }

    fn fetched(&self, fd: i32, socket: &OwnedFd) -> std::result::Result<(), String> {
        let client = self.clients.get(&fd).ok_or("it is not connected")?;
        let fetched = client.service.as_ref().and_then(|service| service.fetched(client.ahead.get()));
        let fetched = fetched.ok_or("no base was asked for")?;
        let Fetched { chunk_len, touched, ahead, prefetch } = fetched;
        let answer = Answer::Fetched { chunk_len, touched, prefetch };
        match list(&ahead) {
            Ok(list) => tell(socket, &answer, Some(&list)),
            // It waits a second for an answer, and does without.
            Err(error) => log::warn!("a VM cannot be told of its chunks: {error}"),
        }
        Ok(())
    }

    fn prefetch(
        &self,
        fd: i32,
        socket: Arc<OwnedFd>,
        list: Option<OwnedFd>,
    ) -> std::result::Result<(), String> {
        let list = list.ok_or("no list of pages was given")?;
        let ahead = self.clients.get(&fd).map(|client| Arc::clone(&client.ahead)).unwrap_or_default();
        self.apart(fd, socket, Answer::NotPrefetched, move |service| {
            let runs = listed(&list.into(), service.filler().len()).map(Runs::from);
            let begun = runs.and_then(|runs| {
                let runs = ahead.get_or_init(|| runs);
                service.prefetch(runs).map_err(|error| report(&error))
            });
            begun.err().map(|why| Answer::NotPrefetched(shortened(why)))
        })
    }

    /// Does what a VM asks for on a thread of its own: others are to be heard meanwhile. `refused` is the
    /// answer if there is none.
    fn apart(
        &self,
        fd: i32,
        socket: Arc<OwnedFd>,
        refused: fn(String) -> Answer,
        act: impl FnOnce(&Service) -> Option<Answer> + Send + 'static,
    ) -> std::result::Result<(), String> {
        let service = self.clients.get(&fd).and_then(|client| client.service.clone());
        let service = service.ok_or("no base was asked for")?;
        let theirs = Arc::clone(&socket);
        let work = move || {
            if let Some(answer) = act(&service) {
                tell(&theirs, &answer, None);
            }
        };
        if let Err(error) = threads::spawn("pager-act", work) {
            let why = format!("the pager cannot do what it is asked for: {}", report(&error));
            tell(&socket, &refused(shortened(why)), None);
        }
        Ok(())
    }
}

/// Answers a VM. One that has no room for an answer, because it hears none, does without: it is served on.
/// The end of one that is gone is heard from its socket.
fn tell(socket: &OwnedFd, answer: &Answer, beside: Option<&File>) {
    let beside = beside.map(|file| file.as_fd());
    if let Err(error) = send(socket, answer, beside, SendFlags::DONTWAIT) {
        log::debug!("a VM cannot be answered: {error}");
    }
}

/// Whether something came that is no message, or not all of one.
fn is_no_message(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}

/// A descriptor to be given up when no other is left.
fn spare() -> Option<OwnedFd> {
    rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// A memfd that a VM has, as one that can be filled.
fn adopted(brought: &OwnedFd, len: u64) -> std::result::Result<File, String> {
    let link = format!("/proc/self/fd/{}", brought.as_raw_fd());
    let target = std::fs::read_link(&link).map_err(|error| error.to_string())?;
    if !target.as_os_str().as_encoded_bytes().starts_with(b"/memfd:volt-ram") {
        return Err("what it brought is no memory of a VM".to_owned());
    }
    let memfd = rustix::fs::open(&link, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let memfd =
        File::from(memfd.map_err(|errno| format!("the memory it brought cannot be filled: {errno}"))?);
    let found = memfd.metadata().map_err(|error| error.to_string())?.len();
    if found == len {
        Ok(memfd)
    } else {
        Err(format!("what it brought is {found} bytes long, and not {len}"))
    }
}

fn same_file(one: &OwnedFd, other: &File) -> bool {
    let identity = |fd| rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino)).ok();
    identity(one.as_fd()).is_some_and(|one| Some(one) == identity(other.as_fd()))
}

fn is_userfaultfd(fd: &OwnedFd) -> bool {
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))
        .is_ok_and(|target| target.as_os_str() == "anon_inode:[userfaultfd]")
}

/// Whether a userfaultfd reports forks, moved, removed or unmapped memory. Reading a fork makes a descriptor
/// in this process, and the other process waits until each event is read (`userfaultfd_ctx_read` of
/// fs/userfaultfd.c).
fn has_events(fd: &OwnedFd) -> io::Result<bool> {
    /// `UFFD_FEATURE_EVENT_FORK`, `_REMAP`, `_REMOVE` and `_UNMAP`.
    const EVENTS: u64 = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 6;
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))?;
    // "API:", then the version, the features that are on, and what the kernel has, by colons.
    let features = info.lines().find_map(|line| line.strip_prefix("API:")?.trim().split(':').nth(1));
    let features = features.and_then(|features| u64::from_str_radix(features, 16).ok());
    features.map(|features| features & EVENTS != 0).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn shortened(mut why: String) -> String {
    let end = (0..=LONGEST_REASON.min(why.len())).rev().find(|end| why.is_char_boundary(*end));
    why.truncate(end.unwrap_or(0));
    why
}
