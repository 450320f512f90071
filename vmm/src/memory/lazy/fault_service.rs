//! The threads that answer page faults of any number of VMs over one base, which they fill.
//!
//! ```text
//!   vCPU: fault ──> userfaultfd ──> read ──> chunk: bytes ──> Filler: into the memfd ──┐
//!                                              │                                       ├──> wake the chunk's range
//!                                              ├─ zero ──> zero pages, the VM's own ───┘
//!                                              └─ unreadable ──> the VM is told, which ends
//! ```
//!
//! A VM's fault is read by one of them, and each chunk is fetched by one: whoever wants it meanwhile is
//! woken with the first. A chunk that comes from a cold disk delays only the faults that want it, up to
//! [`MOST_THREADS`] chunks at a time. A thread that takes a fault while no other is idle begins another
//! before it reads the chunk. The number of threads follows the faults that wait at the same time, so vCPUs
//! and devices limit it, and not the number of chunks.
//!
//! The first fault is an exception: a restore with one vCPU would wait for the second thread and not use it.
//! It begins after that fault's answer. A VM that can have several faults at a time has it begun by the first
//! thread before it runs ([`Service::expect_several`]), and the second VM by its own thread.
//!
//! Beside them another may read ahead ([`super::prefetch`]) into the same memfd. It wakes nobody: who waits
//! for what it has fetched has a fault under way to this thread, which finds that there and wakes.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::{self, JoinHandle};

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;

use super::faults::Faults;
use super::filler::{Filler, Hands, Why};
use super::prefetch;
use super::prefetch::{Progress, Runs};
use super::source::{Chunk, PageSource};
use super::userfault::Userfault;
use crate::error::{Error, Result, report};
use crate::memory::PAGE;
use crate::memory::files::memfd::fresh;
use crate::memory::files::sealing::read_only;
use crate::memory::lazy::faults::{Fetched, Paging};
use crate::memory::range::AddressRange;
use crate::sync::lock;
use crate::threads;

/// Is told of a range of a VM's memory that cannot be had, and why. The fault stays unanswered.
pub type Unreadable = Box<dyn Fn(Range<u64>, &Error) + Send + Sync>;
/// Is told of the offset of each chunk that somebody waits for, on the thread that fetches it: in order, and a chunk perhaps again.
pub type Touched = Box<dyn Fn(u64) + Send + Sync>;

/// A VM whose faults are answered. Addresses are those of its process.
///
/// `UFFDIO_ZEROPAGE` fills whatever is registered with any userfaultfd of the process by then
/// (`validate_dst_vma` of mm/userfaultfd.c asks no more than that), so it is called only while the memory is
/// known to be this VM's.
pub struct Served {
    /// Where the faults come from.
    pub(crate) userfault: Arc<Userfault>,
    /// Where the VM's memory lies. All of it is registered but for stretches that something else is mapped
    /// over.
    pub(crate) start: u64,
    /// Is told which memory cannot be had.
    pub(crate) unreadable: Unreadable,
    /// Whether the memory is the VM's no more. Read while something is done to it.
    is_over: RwLock<bool>,
}

impl Served {
    /// A VM whose memory lies at `start`, of another process perhaps.
    #[must_use]
    pub fn new(userfault: Arc<Userfault>, start: u64, unreadable: Unreadable) -> Self {
        Self { userfault, start, unreadable, is_over: RwLock::new(false) }
    }

    /// A VM of this process: memory that cannot be had ends it.
    pub(crate) fn of(faults: &Arc<Faults>) -> Self {
        let weak = Arc::downgrade(faults);
        let unreadable = move |range: Range<u64>, error: &Error| {
            if let Some(faults) = weak.upgrade() {
                faults.fail(&crate::error::report(error));
                faults.refuse(range);
            }
        };
        Self::new(Arc::clone(faults.userfault()), faults.start(), Box::new(unreadable))
    }

    /// Does something to the VM's memory, unless its service has ended.
    pub(crate) fn while_served(
        &self,
        act: impl FnOnce() -> rustix::io::Result<()>,
    ) -> rustix::io::Result<()> {
        let is_over = self.is_over.read().unwrap_or_else(PoisonError::into_inner);
        if *is_over { Ok(()) } else { act() }
    }

    /// Ends the service. Waits for what is being done to the VM's memory, which takes no longer than a call
    /// of userfaultfd.
    fn end(&self) {
        *self.is_over.write().unwrap_or_else(PoisonError::into_inner) = true;
    }
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Served").field("start", &self.start).finish_non_exhaustive()
    }
}

/// See the module. Dropped, the threads return.
#[derive(Debug)]
pub struct Service {
    shared: Arc<Shared>,
    /// The base as VMs map it.
    base: Arc<File>,
    /// The lists that are read ahead, or were.
    ahead: Mutex<Vec<(Runs, Arc<Progress>)>>,
}

struct Shared {
    filler: Filler,
    touched: Option<Touched>,
    epoll: OwnedFd,
    stop: OwnedFd,
    served: Mutex<HashMap<u64, Arc<Served>>>,
    next: AtomicU64,
    /// Chunks that are being fetched, at most one a thread, and the VMs that wait for them beside the one
    /// they are fetched for.
    under_way: Mutex<Vec<(u64, Vec<Arc<Served>>)>>,
    /// Faults that were read with others and that no thread has in hand yet, and what tells of them.
    backlog: Mutex<VecDeque<(Arc<Served>, u64)>>,
    work: OwnedFd,
    threads: Mutex<Threads>,
    /// Threads that wait for faults, or are about to.
    idle: AtomicUsize,
}

#[derive(Default)]
struct Threads {
    running: Vec<JoinHandle<()>>,
    stops: bool,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("filler", &self.filler)
            .field("served", &self.served)
            .finish_non_exhaustive()
    }
}

/// Lists of memory that are read ahead at the same time, each on a thread.
const MOST_LISTS: usize = 8;
/// What the events are known by that end the threads, and that tell of faults in the backlog; VMs have the
/// numbers behind them.
const STOP: u64 = 0;
const WORK: u64 = 1;
/// Upper bound of the threads over one base: so many chunks are read at a time, and further faults wait. Each
/// thread that has answered a fault keeps a chunk's buffer and a decoder until the service ends.
const MOST_THREADS: usize = 32;

impl Service {
    /// Begins with an empty base for the VMs of this process. Nobody else can write to it.
    ///
    /// # Errors
    /// The host refuses memory, a userfaultfd or a thread.
    pub fn new(source: Box<dyn PageSource>) -> Result<Self> {
        Self::sealed(source, None)
    }

    /// The same, and `touched` is told of what is touched.
    ///
    /// # Errors
    /// As [`Service::new`].
    pub fn noting(source: Box<dyn PageSource>, touched: Touched) -> Result<Self> {
        Self::sealed(source, Some(touched))
    }

    fn sealed(source: Box<dyn PageSource>, touched: Option<Touched>) -> Result<Self> {
        let mut filler = Filler::new(fresh(source.memory_len())?, source)?;
        filler.seal_against_others()?;
        Self::begin_with(filler, touched)
    }

    /// Begins with a base that may hold something already.
    ///
    /// # Errors
    /// As [`Service::new`].
    pub fn over(memfd: File, source: Box<dyn PageSource>) -> Result<Self> {
        Self::begin_with(Filler::new(memfd, source)?, None)
    }

    fn begin_with(filler: Filler, touched: Option<Touched>) -> Result<Self> {
        let refused = |errno: Errno| Error::host("prepare to answer page faults", errno);
        let base = read_only(filler.memfd())
            .map_err(|source| Error::host("open the memory that VMs are to share", source))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(refused)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(refused)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE;
        let work = eventfd(0, flags).map_err(refused)?;
        epoll::add(&epoll, &stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN).map_err(refused)?;
        epoll::add(&epoll, &work, epoll::EventData::new_u64(WORK), epoll::EventFlags::IN).map_err(refused)?;
        let shared = Arc::new(Shared {
            filler,
            touched,
            epoll,
            stop,
            served: Mutex::default(),
            next: AtomicU64::new(WORK + 1),
            under_way: Mutex::default(),
            backlog: Mutex::default(),
            work,
            threads: Mutex::default(),
            idle: AtomicUsize::new(0),
        });
        let service = Self { shared, base: Arc::new(base), ahead: Mutex::default() };
        service.shared.begin_thread()?;
        Ok(service)
    }

    /// What it fills.
    #[must_use]
    pub fn filler(&self) -> &Filler {
        &self.shared.filler
    }

    /// Fills all that is not there yet, and seals the base: it can be given to anyone then.
    ///
    /// # Errors
    /// A chunk cannot be had. A base that cannot be sealed is complete all the same.
    pub fn complete_and_seal(&self) -> Result<()> {
        self.shared.filler.complete()?;
        if let Err(error) = self.shared.filler.seal() {
            log::warn!("memory that VMs share stays as it is, and cannot be given to others: {error}");
        }
        Ok(())
    }

    /// Begins to answer a VM's faults, and gives the number that it is known by.
    ///
    /// # Errors
    /// The host refuses.
    pub fn add(&self, served: Served) -> Result<u64> {
        let Shared { epoll, next, served: all, .. } = &*self.shared;
        let number = next.fetch_add(1, Ordering::Relaxed);
        let userfault = Arc::clone(&served.userfault);
        let is_first = {
            let mut all = lock(all);
            all.insert(number, Arc::new(served));
            all.len() == 1
        };
        // One thread is told of a fault, and not all.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(epoll, &*userfault, epoll::EventData::new_u64(number), flags).map_err(|errno| {
            lock(all).remove(&number);
            Error::host("answer a VM's page faults", errno)
        })?;
        // The first thread may be in the middle of another VM's first fault.
        if !is_first && lock(&self.shared.threads).running.len() == 1 {
            self.shared.begin_next();
        }
        Ok(number)
    }

    /// Prepares for faults that wait at the same time: the first thread begins the second one, now and not
    /// after the first fault's answer. Costs the caller one write to an eventfd.
    pub fn expect_several(&self) {
        // Without a fault in the backlog the message only wakes a thread, which finds no other idle.
        let _ = rustix::io::write(&self.shared.work, &1_u64.to_ne_bytes());
    }

    /// Answers a VM's faults no more: when this returns, nothing is done to its memory.
    pub fn remove(&self, number: u64) {
        let removed = lock(&self.shared.served).remove(&number);
        if let Some(served) = removed {
            // In the kernel it would stay until the last descriptor of it is closed, wherever that is.
            let _ = epoll::delete(&self.shared.epoll, &*served.userfault);
            // A thread that has a fault of the VM's in hand answers it no more.
            served.end();
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        lock(&self.ahead).iter().for_each(|(_, progress)| progress.stop());
        let _ = rustix::io::write(&self.shared.stop, &1_u64.to_ne_bytes());
        let mut threads = lock(&self.shared.threads);
        threads.stops = true;
        let running = std::mem::take(&mut threads.running);
        drop(threads);
        // The last VM may have gone while one of them told it of its end.
        for thread in running.into_iter().filter(|thread| thread.thread().id() != thread::current().id()) {
            let _ = thread.join();
        }
    }
}

impl Paging for Service {
    fn base(&self) -> Arc<File> {
        Arc::clone(&self.base)
    }

    fn begin(&self, faults: &Arc<Faults>) -> Result<u64> {
        self.add(Served::of(faults))
    }

    fn end(&self, number: u64, _: AddressRange) {
        self.remove(number);
    }

    fn bring(&self, number: u64, range: Range<u64>) -> Result<bool> {
        let Some(served) = lock(&self.shared.served).get(&number).cloned() else { return Ok(false) };
        let chunk_len = self.shared.filler.chunk_len();
        let mut hands = self.shared.filler.hands(Why::Touched);
        let mut chunks = range.start / chunk_len..range.end.div_ceil(chunk_len);
        chunks.try_for_each(|chunk| self.shared.put(&served, chunk, &mut hands))?;
        Ok(true)
    }

    fn expect_several(&self) {
        self.expect_several();
    }

    fn complete(&self) -> Result<()> {
        self.shared.filler.complete()
    }

    /// Once for all VMs that name the same, and beside what others name: diffs over one base have lists of
    /// their own.
    fn prefetch(&self, runs: &Runs) -> Result<()> {
        let mut ahead = lock(&self.ahead);
        if ahead.iter().any(|(known, _)| known == runs) {
            return Ok(());
        }
        if ahead.len() >= MOST_LISTS {
            // A list that is over may be named again, and is read fast then.
            let over = ahead.iter().position(|(_, progress)| progress.now().is_over).ok_or_else(|| {
                let why = std::io::Error::other(format!("{MOST_LISTS} lists are being read already"));
                Error::host("read memory ahead", why)
            })?;
            ahead.remove(over);
        }
        let shared = Arc::clone(&self.shared);
        let progress = prefetch::ahead(runs, move |steps| {
            let filler = &shared.filler;
            let mut hands = filler.hands(Why::Ahead);
            steps.each(|Range { start, end }| {
                let mut chunks = start / filler.chunk_len()..end.div_ceil(filler.chunk_len());
                chunks.try_for_each(|chunk| filler.fill(chunk, &mut hands).map(drop))
            })
        })?;
        ahead.push((Arc::clone(runs), progress));
        Ok(())
    }

    fn fetched(&self, ahead: Option<&Runs>) -> Option<Fetched> {
        let filler = &self.shared.filler;
        let lists = lock(&self.ahead);
        let list = ahead.and_then(|runs| lists.iter().find(|(known, _)| known == runs));
        Some(Fetched {
            chunk_len: filler.chunk_len(),
            touched: filler.touched(),
            ahead: filler.ahead().collect(),
            prefetch: list.map(|(_, progress)| progress.now()),
        })
    }
}

impl Shared {
    /// Begins another thread, if there are not enough.
    fn begin_thread(self: &Arc<Self>) -> Result<()> {
        let mut threads = lock(&self.threads);
        if threads.stops || threads.running.len() >= MOST_THREADS {
            return Ok(());
        }
        let (shared, is_first) = (Arc::clone(self), threads.running.is_empty());
        // Counted before it runs: a second fault begins no other in its place.
        self.idle.fetch_add(1, Ordering::Relaxed);
        let thread = threads::spawn("pager", move || shared.run(is_first)).inspect_err(|_| {
            self.idle.fetch_sub(1, Ordering::Relaxed);
        })?;
        threads.running.push(thread);
        Ok(())
    }

    /// The same where faults are only slower without it.
    fn begin_next(self: &Arc<Self>) {
        if let Err(error) = self.begin_thread() {
            log::debug!("no other thread answers page faults: {}", report(&error));
        }
    }

    /// The first thread, or another.
    fn run(self: &Arc<Self>, is_first: bool) {
        let _told = ToldOfPanic(self);
        let mut hands = None;
        // One at a time: others may take what else there is.
        let mut events = Vec::with_capacity(1);
        loop {
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => {
                    log::error!("page faults are not answered any more: {errno}");
                    return;
                }
            }
            for event in &events {
                let number = event.data.u64();
                if number == STOP {
                    return;
                }
                // The next fault may come while this thread reads from a disk.
                let is_alone = self.idle.fetch_sub(1, Ordering::Relaxed) == 1;
                // Beside a second thread the first fault may be one more, behind a cold read.
                let is_only = || lock(&self.threads).running.len() == 1;
                let answers_first = is_alone && is_first && hands.is_none() && number != WORK && is_only();
                if is_alone && !answers_first {
                    self.begin_next();
                }
                self.take(number, &mut hands);
                if answers_first {
                    self.begin_next();
                }
                self.idle.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn take<'s>(&'s self, number: u64, hands: &mut Option<Hands<'s>>) {
        let made = || self.filler.hands(Why::Touched);
        if number == WORK {
            let mut count = [0; 8];
            let is_mine = rustix::io::read(&self.work, &mut count).is_ok();
            let fault = if is_mine { lock(&self.backlog).pop_front() } else { None };
            if let Some((served, chunk)) = fault {
                self.bring(&served, chunk, hands.get_or_insert_with(made));
            }
            return;
        }
        let Some(served) = lock(&self.served).get(&number).cloned() else { return };
        if let Err(errno) = self.answer(&served, hands.get_or_insert_with(made)) {
            self.give_up(number, &served, errno);
        }
    }

    /// A userfaultfd that cannot be read would be reported as ready again and again.
    fn give_up(&self, number: u64, served: &Served, errno: Errno) {
        let _ = epoll::delete(&self.epoll, &*served.userfault);
        // Before it is forgotten: a VM that is removed and not known any more unmaps its memory at once, and
        // another thread may have one of its faults in hand.
        served.end();
        lock(&self.served).remove(&number);
        let error = Error::host("read a VM's page faults", errno);
        (served.unreadable)(0..self.filler.len(), &error);
    }

    fn answer(&self, served: &Arc<Served>, hands: &mut Hands<'_>) -> rustix::io::Result<()> {
        let (len, chunk_len) = (self.filler.len(), self.filler.chunk_len());
        // Most of the time there is one.
        let (mut first, mut others) = (None, Vec::new());
        let each = |address: u64| match address.checked_sub(served.start) {
            Some(offset) if offset < len => {
                let chunk = offset / chunk_len;
                // Of one chunk there may be many.
                if *first.get_or_insert(chunk) != chunk && others.last() != Some(&chunk) {
                    others.push(chunk);
                }
            }
            _ => log::error!("a page fault at {address:#x}, which is not guest memory"),
        };
        // All there are: of those that are left nobody is told again.
        served.userfault.read_all(each)?;
        if !others.is_empty() {
            lock(&self.backlog).extend(others.iter().map(|chunk| (Arc::clone(served), *chunk)));
            let _ = rustix::io::write(&self.work, &(others.len() as u64).to_ne_bytes());
        }
        first.into_iter().for_each(|chunk| self.bring(served, chunk, hands));
        Ok(())
    }

    /// Puts a chunk in place, and wakes whoever waits for it by then.
    fn bring(&self, served: &Arc<Served>, chunk: u64, hands: &mut Hands<'_>) {
        if let Some(touched) = &self.touched {
            touched(self.filler.range(chunk).start);
        }
        let mut under_way = lock(&self.under_way);
        if let Some((_, waiting)) = under_way.iter_mut().find(|(other, _)| *other == chunk) {
            waiting.push(Arc::clone(served));
            return;
        }
        under_way.push((chunk, Vec::new()));
        drop(under_way);
        let what = self.filler.fill(chunk, hands);
        let mut under_way = lock(&self.under_way);
        let place = under_way.iter().position(|(other, _)| *other == chunk);
        let waiting = place.map(|place| under_way.swap_remove(place).1).unwrap_or_default();
        drop(under_way);
        [served].into_iter().chain(&waiting).for_each(|served| self.settle(served, chunk, &what));
    }

    fn settle(&self, served: &Served, chunk: u64, what: &Result<Chunk>) {
        let range = self.filler.range(chunk);
        let wake = || served.userfault.wake(served.start + range.start, range.end - range.start);
        match what {
            Ok(what) => match self.lay(served, &range, *what) {
                // A process that is gone waits for nothing.
                Ok(()) => drop(served.while_served(wake)),
                Err(error) => (served.unreadable)(range, &error),
            },
            Err(error) => (served.unreadable)(range, error),
        }
    }

    /// Has a chunk in place without a fault.
    fn put(&self, served: &Served, chunk: u64, hands: &mut Hands<'_>) -> Result<()> {
        let range = self.filler.range(chunk);
        if let Some(touched) = &self.touched {
            touched(range.start);
        }
        let what = self.filler.fill(chunk, hands)?;
        self.lay(served, &range, what)
    }

    /// What is zero is no part of the base, and each VM's own.
    fn lay(&self, served: &Served, range: &Range<u64>, what: Chunk) -> Result<()> {
        if what == Chunk::Bytes {
            return Ok(());
        }
        self.filler
            .patiently(Why::Touched, || served.while_served(|| zero(served, range)))
            .map_err(|errno| Error::host("put pages of zeros in the place of guest memory", errno))
    }
}

/// Faults that nobody would answer any more end the VMs that wait in them.
struct ToldOfPanic<'s>(&'s Shared);

impl Drop for ToldOfPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let error =
                Error::host("answer page faults", std::io::Error::other("the thread that does has panicked"));
            let all: Vec<_> = lock(&self.0.served).values().cloned().collect();
            all.iter().for_each(|served| (served.unreadable)(0..self.0.filler.len(), &error));
        }
    }
}

/// Pages of zeros in a VM's own memory, which take none.
pub(crate) fn zero(served: &Served, range: &Range<u64>) -> rustix::io::Result<()> {
    let at = |offset| served.start + offset;
    match served.userfault.zero(at(range.start), range.end - range.start) {
        // A part of it has something else mapped over it.
        Err(Errno::NOENT) => range.clone().step_by(PAGE as usize).try_for_each(|page| {
            match served.userfault.zero(at(page), PAGE) {
                Err(Errno::NOENT) => Ok(()),
                other => other,
            }
        }),
        Err(Errno::SRCH) => Ok(()),
        other => other,
    }
}
