//! A VM's side of its pager: finds or starts one, and another one when it dies.
//!
//! ```text
//!   Connected ── the socket ends ──> Looking ── one is there ──> Connected      (faults wait meanwhile)
//!                                       └────── none in time ──> the VM ends
//! ```

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType};

use super::list::{list, listed};
use super::message::{Answer, Ask, VERSION, receive, send};
use super::place::{Place, default_directory};
use crate::error::{Error, Result, report};
use crate::memory::faults::Faults;
use crate::memory::paging::{Fetched, Paging};
use crate::memory::prefetch::Runs;
use crate::sync::lock;

/// Between two attempts to reach a pager that starts.
const PAUSE: Duration = Duration::from_millis(2);
/// Between two that are started, at first; then longer and longer.
const BETWEEN_STARTS: Duration = Duration::from_millis(50);
/// Between two looks at who waits for memory that will not come.
const LOOK: Duration = Duration::from_millis(20);
/// How long a pager has to say what it has fetched, which nobody depends on.
const TO_SAY: Duration = Duration::from_secs(1);

/// Which pager, and how one is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PagerOptions {
    /// Where pagers are found. Only this user can enter it.
    pub directory: PathBuf,
    /// The program that is one: run as `PROGRAM pager --pack-on-stdin --name FILE --pager-dir DIRECTORY`.
    pub program: PathBuf,
    /// How long one is waited for, at first and after another has died: then the VM ends.
    pub patience: Duration,
}

impl PagerOptions {
    /// With `program`, a `volt-vmm`.
    #[must_use]
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { directory: default_directory(), program: program.into(), patience: Duration::from_secs(10) }
    }
}

/// The pager of one VM. See the module.
#[derive(Debug)]
pub struct Pager(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    options: PagerOptions,
    place: Place,
    pack: File,
    /// What the pack is called in errors.
    name: PathBuf,
    memory_len: u64,
    base: OnceLock<Arc<File>>,
    /// The list of what is to be fetched ahead, if something is.
    ahead: OnceLock<File>,
    /// What this process has started, to be waited for.
    started: Mutex<Vec<Child>>,
    line: Mutex<Line>,
    changed: Condvar,
}

/// The connection, and what is awaited on it.
#[derive(Debug, Default)]
struct Line {
    /// None while there is none.
    socket: Option<Arc<OwnedFd>>,
    over: bool,
    /// What the pager said to [`Ask::Complete`], once it is asked for.
    completed: Option<Answer>,
    /// What it said to [`Ask::Fetched`], once it is asked for.
    fetched: Option<Fetched>,
    /// How many connections there have been: an answer that is awaited from one does not come from the next.
    count: u64,
}

impl Pager {
    /// Has the base of the pack in `pack`, which is called `name`, and `memory_len` bytes of memory.
    ///
    /// # Errors
    /// There is no pager, and none can be started.
    pub fn connect(options: &PagerOptions, pack: File, name: PathBuf, memory_len: u64) -> Result<Self> {
        let place = Place::of(&pack, &options.directory)?;
        let inner = Inner {
            options: options.clone(),
            place,
            pack,
            name,
            memory_len,
            base: OnceLock::new(),
            ahead: OnceLock::new(),
            started: Mutex::default(),
            line: Mutex::default(),
            changed: Condvar::new(),
        };
        let socket = inner.reach()?;
        let mut line = lock(&inner.line);
        (line.socket, line.count) = (Some(Arc::new(socket)), 1);
        drop(line);
        Ok(Self(Arc::new(inner)))
    }
}

impl Paging for Pager {
    fn base(&self) -> Arc<File> {
        Arc::clone(self.0.base.get().expect("it was had when the pager was connected"))
    }

    fn begin(&self, faults: &Arc<Faults>) -> Result<u64> {
        let (inner, weak) = (Arc::clone(&self.0), Arc::downgrade(faults));
        let socket = lock(&inner.line).socket.clone().expect("it is connected until someone watches");
        // A pager that was about to go when it was reached is no reason to fail.
        if let Err(error) = inner.serve(&socket, faults) {
            log::debug!("the pager went: {}", report(&error));
            let socket = inner.reach().and_then(|socket| inner.serve(&socket, faults).map(|()| socket))?;
            lock(&inner.line).socket = Some(Arc::new(socket));
        }
        thread::Builder::new()
            .name("volt-pager-watch".to_owned())
            .spawn(move || inner.watch(&weak))
            .map_err(|source| Error::host("start the thread that watches a pager", source))?;
        Ok(0)
    }

    fn end(&self, _: u64) {
        let mut line = lock(&self.0.line);
        line.over = true;
        if let Some(socket) = line.socket.take() {
            let _ = rustix::net::shutdown(&*socket, Shutdown::Both);
        }
        self.0.changed.notify_all();
    }

    /// A pager that dies over it is asked again when there is another.
    fn complete(&self) -> Result<()> {
        let inner = &*self.0;
        let gone = || Error::host("fetch all of a VM's memory", io::Error::other("there is no pager"));
        let mut line = lock(&inner.line);
        loop {
            // While there is none, the one who watches looks for it, or ends the VM.
            line = inner
                .changed
                .wait_while(line, |line| line.socket.is_none() && !line.over)
                .unwrap_or_else(PoisonError::into_inner);
            let Some(socket) = line.socket.clone().filter(|_| !line.over) else { return Err(gone()) };
            let count = line.count;
            line.completed = None;
            if send(&*socket, &Ask::Complete, None, SendFlags::empty()).is_ok() {
                let waits = |line: &mut Line| line.completed.is_none() && line.count == count && !line.over;
                line = inner.changed.wait_while(line, waits).unwrap_or_else(PoisonError::into_inner);
            } else {
                let waits = |line: &mut Line| line.count == count && line.socket.is_some() && !line.over;
                line = inner.changed.wait_while(line, waits).unwrap_or_else(PoisonError::into_inner);
            }
            match line.completed.take() {
                Some(Answer::Done) => return Ok(()),
                Some(Answer::Refused(why)) => {
                    return Err(Error::host("fetch all of a VM's memory", io::Error::other(why)));
                }
                _ => {}
            }
        }
    }

    /// A pager that comes later is asked too.
    fn prefetch(&self, runs: &Runs) -> Result<()> {
        let failed = |source| Error::host("list pages for the pager", source);
        let list = list(runs).map_err(failed)?;
        let inner = &*self.0;
        if inner.ahead.set(list).is_ok()
            && let Some(socket) = lock(&inner.line).socket.clone()
        {
            inner.ask_ahead(&socket);
        }
        Ok(())
    }

    /// One that stands still says nothing.
    fn fetched(&self) -> Option<Fetched> {
        let inner = &*self.0;
        let mut line = lock(&inner.line);
        let socket = line.socket.clone()?;
        line.fetched = None;
        send(&*socket, &Ask::Fetched, None, SendFlags::DONTWAIT).ok()?;
        let waits = |line: &mut Line| line.fetched.is_none() && !line.over;
        let waited = inner.changed.wait_timeout_while(line, TO_SAY, waits);
        waited.unwrap_or_else(PoisonError::into_inner).0.fetched.take()
    }
}

impl Inner {
    /// Has the pager fetch ahead what is to be, if something is. One that is gone, or does not listen, is not waited for: it is advice.
    fn ask_ahead(&self, socket: &OwnedFd) {
        if let Some(list) = self.ahead.get() {
            let _ = send(socket, &Ask::Prefetch, Some(list.as_fd()), SendFlags::DONTWAIT);
        }
    }

    /// Connects, starting a pager if there is none, and has the base.
    fn reach(&self) -> Result<OwnedFd> {
        let deadline = Instant::now() + self.options.patience;
        // Not again and again: one that is about to listen needs the processor for it.
        let (mut next_start, mut pause) = (Instant::now(), BETWEEN_STARTS);
        loop {
            let tried =
                self.connect().and_then(|socket| self.ask_for_base(&socket).map(|base| (socket, base)));
            let error = match tried {
                Ok((socket, base)) => {
                    self.base.get_or_init(|| Arc::new(base));
                    return Ok(socket);
                }
                Err(error) => error,
            };
            let failed = |source| Error::file("reach the pager at", self.place.socket().display(), source);
            match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                    if Instant::now() >= next_start && self.has_ended() && !self.place.is_claimed() =>
                {
                    self.start()?;
                    next_start = Instant::now() + pause;
                    pause *= 2;
                }
                // Said by a pager, which would say it again.
                io::ErrorKind::Other | io::ErrorKind::InvalidData => return Err(failed(error)),
                _ if Instant::now() > deadline => return Err(failed(error)),
                // One that is about to go, and has not taken its socket away yet; or that is about to come.
                _ => thread::sleep(PAUSE),
            }
        }
    }

    fn connect(&self) -> io::Result<OwnedFd> {
        let address = SocketAddrUnix::new(self.place.socket())?;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        rustix::net::connect(&socket, &address)?;
        let own = rustix::process::geteuid();
        match rustix::net::sockopt::socket_peercred(&socket)?.uid == own {
            true => Ok(socket),
            false => Err(io::Error::other("it is another user's")),
        }
    }

    fn ask_for_base(&self, socket: &OwnedFd) -> io::Result<File> {
        let ask = Ask::Base { version: VERSION, memory_len: self.memory_len };
        let brought = self.base.get().map(|base| base.as_fd());
        send(socket, &ask, brought, SendFlags::empty())?;
        match receive::<Answer>(socket, RecvFlags::empty())? {
            Some((Answer::Done, Some(base))) => Ok(base.into()),
            Some((Answer::Refused(why), _)) => Err(io::Error::other(why)),
            Some(_) => Err(io::Error::other("it answers what was not asked")),
            None => Err(io::ErrorKind::ConnectionReset.into()),
        }
    }

    fn serve(&self, socket: &OwnedFd, faults: &Faults) -> Result<()> {
        let failed = |source| Error::file("be served by the pager at", self.place.socket().display(), source);
        let ask = Ask::Serve { start: faults.start(), len: faults.len() };
        send(socket, &ask, Some(faults.userfault().as_fd()), SendFlags::empty()).map_err(failed)?;
        loop {
            return match receive::<Answer>(socket, RecvFlags::empty()).map_err(failed)? {
                Some((Answer::Done, _)) => Ok(()),
                Some((Answer::Refused(why), _)) => Err(failed(io::Error::other(why))),
                Some((Answer::Fetched { .. } | Answer::NotPrefetched(_), _)) => {
                    Err(failed(io::Error::other("it answers what was not asked")))
                }
                // A fault that was answered before this was.
                Some((Answer::Unreadable { start, end, why }, _)) => {
                    faults.fail(&why);
                    faults.refuse(start..end);
                    continue;
                }
                None => Err(failed(io::ErrorKind::ConnectionReset.into())),
            };
        }
    }

    /// A process of its own, which outlives this one. It has the pack for standard input: the name may be another file's by now.
    fn start(&self) -> Result<()> {
        let failed = |source| Error::file("start the pager", self.options.program.display(), source);
        let pack = self.pack.try_clone().map_err(failed)?;
        let child = Command::new(&self.options.program)
            .args(["pager", "--pack-on-stdin", "--name"])
            .arg(&self.name)
            .arg("--pager-dir")
            .arg(&self.options.directory)
            .stdin(pack)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        lock(&self.started).push(child);
        Ok(())
    }

    /// Whether what this process started is no more: none of them is left as a zombie.
    fn has_ended(&self) -> bool {
        let mut started = lock(&self.started);
        started.retain_mut(|child| child.try_wait().is_ok_and(|ended| ended.is_none()));
        started.is_empty()
    }

    /// Hears what the pager says, until the VM's memory is gone.
    fn watch(&self, faults: &Weak<Faults>) {
        loop {
            let Some(socket) = lock(&self.line).socket.clone() else { return };
            while let Ok(Some((said, beside))) = receive::<Answer>(&*socket, RecvFlags::empty()) {
                match said {
                    Answer::Unreadable { start, end, why } => {
                        if let Some(faults) = faults.upgrade() {
                            faults.fail(&why);
                            faults.refuse(start..end);
                        }
                    }
                    Answer::Fetched { chunk_len, touched, prefetch } => {
                        let ahead = beside.and_then(|list| listed(&list.into(), self.memory_len).ok());
                        let fetched = ahead.map(|ahead| Fetched { chunk_len, touched, ahead, prefetch });
                        lock(&self.line).fetched = fetched;
                        self.changed.notify_all();
                    }
                    Answer::NotPrefetched(why) => log::warn!("the pager fetches nothing ahead: {why}"),
                    answer => {
                        lock(&self.line).completed = Some(answer);
                        self.changed.notify_all();
                    }
                }
            }
            self.has_ended();
            let mut line = lock(&self.line);
            if line.over {
                return;
            }
            (line.socket, line.count) = (None, line.count + 1);
            self.changed.notify_all();
            drop(line);
            if !self.replace(faults) {
                return;
            }
        }
    }

    /// Looks for another pager. If there is none in time, the VM ends: says whether there is one.
    fn replace(&self, faults: &Weak<Faults>) -> bool {
        let deadline = Instant::now() + self.options.patience;
        loop {
            let Some(alive) = faults.upgrade() else { return false };
            let found = self.reach().and_then(|socket| self.serve(&socket, &alive).map(|()| socket));
            let why = match found {
                Ok(socket) => {
                    let socket = Arc::new(socket);
                    let mut line = lock(&self.line);
                    line.socket = Some(Arc::clone(&socket));
                    self.changed.notify_all();
                    // Its end may have come meanwhile.
                    if line.over
                        && let Some(socket) = line.socket.take()
                    {
                        let _ = rustix::net::shutdown(&*socket, Shutdown::Both);
                    }
                    drop(line);
                    self.ask_ahead(&socket);
                    return true;
                }
                Err(error) => report(&error),
            };
            if lock(&self.line).over {
                return false;
            }
            if Instant::now() > deadline {
                return self.give_up(alive, &why);
            }
            drop(alive);
            thread::sleep(PAUSE);
        }
    }

    /// Lets all who wait for memory go, for as long as there are any.
    fn give_up(&self, faults: Arc<Faults>, why: &str) -> bool {
        let why = format!("the pager has died, and there is no other: {why}");
        {
            let mut line = lock(&self.line);
            line.over = true;
            self.changed.notify_all();
        }
        let mut faults = Some(faults);
        let weak = faults.as_ref().map(Arc::downgrade).unwrap_or_default();
        while let Some(alive) = faults.take().or_else(|| weak.upgrade()) {
            alive.let_go(&why);
            drop(alive);
            thread::sleep(LOOK);
        }
        false
    }
}
