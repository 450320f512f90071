//! Threads that answer the page faults of any number of VMs over one base, and fill the base.
//!
//! ```text
//!   vCPU: fault ──> userfaultfd ──> read ──> chunk: bytes ──> Filler: into the memfd ──┐
//!                                              │                                       ├──> wake the chunk's range
//!                                              ├─ zero ──> zero pages, the VM's own ───┘
//!                                              └─ unreadable ──> the VM is told, which ends
//! ```
//!
//! One thread reads a fault, and one thread fetches a chunk: faults for the same chunk meanwhile are woken
//! with the first. A chunk from a cold disk delays only its own faults, up to [`MOST_THREADS`] chunks at a
//! time. A thread that takes a fault while no other is idle starts another before it reads the chunk. The
//! number of threads thus follows the faults that wait at the same time, which vCPUs and devices limit, and
//! not the number of chunks.
//!
//! The first fault is an exception: a restore with one vCPU would wait for the second thread and not use it.
//! The second thread starts after that fault's answer. For a VM that can have several faults at a time, the
//! first thread starts it before the VM runs ([`Service::expect_several`]). [`Service::add`] starts it for a
//! second VM, and for a VM that comes while the first thread is busy.
//!
//! Another thread may read ahead ([`super::prefetch`]) into the same memfd. It wakes no waiter: a fault for a
//! chunk that it fetched goes through one of these threads, which finds the chunk and wakes.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;

use super::faults::Faults;
use super::filler::{ChunkTools, FillReason, Filler};
use super::prefetch;
use super::prefetch::{PageRanges, PrefetchProgress};
use super::served_vm::{ServedVm, zero};
use super::source::{Chunk, PageSource};
use crate::counters::faults::{FaultKind, FaultMetrics};
use crate::error::{Error, Result, report};
use crate::memory::files::memfd::fresh;
use crate::memory::files::sealing::read_only;
use crate::memory::lazy::faults::{FaultHandler, Fetched};
use crate::memory::range::AddressRange;
use crate::progress::Progress;
use crate::sandbox::ThreadKind;
use crate::sync::{lock, signal};
use crate::threads;

/// Called with the offset of each chunk for which a fault waits, in order, on the thread that fetches it. A
/// chunk may come again.
pub type Touched = Box<dyn Fn(u64) + Send + Sync>;

/// See the module. Dropping it ends the threads.
#[derive(Debug)]
pub struct Service {
    shared: Arc<ServiceState>,
    /// The base as VMs map it.
    base: Arc<File>,
    /// Ranges that are read ahead, or were.
    ahead: Mutex<Vec<(PageRanges, Arc<PrefetchProgress>)>>,
}

struct ServiceState {
    filler: Filler,
    touched: Option<Touched>,
    epoll: OwnedFd,
    stop: OwnedFd,
    served: Mutex<HashMap<u64, Arc<ServedVm>>>,
    next: AtomicU64,
    /// Chunks being fetched, at most one per thread, and the VMs that wait for them besides the one that each
    /// is fetched for.
    under_way: Mutex<Vec<(u64, Vec<WaitingVm>)>>,
    /// Faults read together with others that no thread handles yet, and the event that announces them.
    backlog: Mutex<VecDeque<(Arc<ServedVm>, u64)>>,
    work: OwnedFd,
    threads: Mutex<Threads>,
    /// Number of threads that wait for faults, or are about to.
    idle: AtomicUsize,
}

/// A VM with a fault for a chunk that is under way, and the time since when it waits.
type WaitingVm = (Arc<ServedVm>, Instant);

#[derive(Default)]
struct Threads {
    running: Vec<JoinHandle<()>>,
    stops: bool,
}

impl fmt::Debug for ServiceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceState")
            .field("filler", &self.filler)
            .field("served", &self.served)
            .finish_non_exhaustive()
    }
}

/// The most lists that are read ahead at the same time, each on a thread.
const MOST_LISTS: usize = 8;
/// Numbers of the events that end the threads and that announce the backlog. VMs have larger numbers.
const STOP: u64 = 0;
const WORK: u64 = 1;
/// Upper bound of the threads over one base, so also of chunks read at a time; further faults wait. Each
/// thread that answered a fault keeps a chunk's buffer and a decoder until the service ends.
pub(super) const MOST_THREADS: usize = 32;

impl Service {
    /// Starts with an empty base for the VMs of this process, which alone can write to it.
    ///
    /// # Errors
    /// The host refuses memory, a userfaultfd or a thread.
    pub fn new(source: Box<dyn PageSource>) -> Result<Self> {
        Self::sealed(source, None)
    }

    /// As [`Service::new`], and calls `touched` for each touched chunk.
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

    /// Starts with a base that may already hold chunks.
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
        let shared = Arc::new(ServiceState {
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

    /// The filler of the base.
    #[must_use]
    pub fn filler(&self) -> &Filler {
        &self.shared.filler
    }

    /// Completes the base and seals it, so that any process may have it.
    ///
    /// # Errors
    /// A chunk is unavailable; or the base cannot be sealed, though it is complete.
    pub fn complete_and_seal(&self) -> Result<()> {
        self.shared.filler.complete(&Progress::default())?;
        if let Err(error) = self.shared.filler.seal() {
            log::warn!(
                "cannot seal the memory that VMs share, so it cannot be given to other processes: {error}"
            );
        }
        Ok(())
    }

    /// Starts answering a VM's faults. Returns the VM's number.
    ///
    /// # Errors
    /// The host refuses.
    pub fn add(&self, served: ServedVm) -> Result<u64> {
        let ServiceState { epoll, next, served: all, .. } = &*self.shared;
        let number = next.fetch_add(1, Ordering::Relaxed);
        let userfault = Arc::clone(&served.userfault);
        let has_others = {
            let mut all = lock(all);
            all.insert(number, Arc::new(served));
            all.len() > 1
        };
        // Wakes one thread for a fault, not all.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(epoll, &*userfault, epoll::EventData::new_u64(number), flags).map_err(|errno| {
            lock(all).remove(&number);
            Error::host("answer a VM's page faults", errno)
        })?;
        // The first thread may be busy, now or soon, with another VM's first fault, even if that VM ended.
        let may_be_busy = has_others || self.shared.idle.load(Ordering::Relaxed) == 0;
        if may_be_busy && lock(&self.shared.threads).running.len() == 1 {
            self.shared.begin_next();
        }
        Ok(number)
    }

    /// Prepares for faults that wait at the same time: the first thread starts the second one now, and not
    /// after the first fault's answer. The caller only writes to an eventfd.
    pub fn expect_several(&self) {
        // Without a fault in the backlog, the event only wakes a thread, which finds no other idle.
        signal(&self.shared.work, 1);
    }

    /// Stops answering a VM's faults. Nothing changes its memory after this returns.
    pub fn remove(&self, number: u64) {
        let removed = lock(&self.shared.served).remove(&number);
        if let Some(served) = removed {
            // The kernel would keep it until the last descriptor is closed, in whatever process.
            let _ = epoll::delete(&self.shared.epoll, &*served.userfault);
            // A thread with one of the VM's faults drops it.
            served.end();
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        lock(&self.ahead).iter().for_each(|(_, progress)| progress.stop());
        signal(&self.shared.stop, 1);
        let mut threads = lock(&self.shared.threads);
        threads.stops = true;
        let running = std::mem::take(&mut threads.running);
        drop(threads);
        // A thread may drop the last VM while it reports that VM's end.
        for thread in running.into_iter().filter(|thread| thread.thread().id() != thread::current().id()) {
            let _ = thread.join();
        }
    }
}

impl FaultHandler for Service {
    fn base(&self) -> Arc<File> {
        Arc::clone(&self.base)
    }

    fn begin(&self, faults: &Arc<Faults>) -> Result<u64> {
        self.add(ServedVm::of(faults))
    }

    fn end(&self, number: u64, _: AddressRange) {
        self.remove(number);
    }

    fn fetch(&self, number: u64, range: Range<u64>) -> Result<bool> {
        let Some(served) = lock(&self.shared.served).get(&number).cloned() else { return Ok(false) };
        let chunk_len = self.shared.filler.chunk_len();
        let mut tools = self.shared.filler.tools(FillReason::Touched);
        let mut chunks = range.start / chunk_len..range.end.div_ceil(chunk_len);
        chunks.try_for_each(|chunk| self.shared.put(&served, chunk, &mut tools))?;
        Ok(true)
    }

    fn expect_several(&self) {
        self.expect_several();
    }

    fn complete(&self, progress: &Progress) -> Result<()> {
        self.shared.filler.complete(progress)
    }

    /// Reads a list ahead once for all VMs that name it. Diffs over one base have lists of their own.
    fn prefetch(&self, runs: &PageRanges) -> Result<()> {
        let mut ahead = lock(&self.ahead);
        if ahead.iter().any(|(known, _)| known == runs) {
            return Ok(());
        }
        if ahead.len() >= MOST_LISTS {
            // A finished list may be named again, and is read quickly then.
            let over = ahead.iter().position(|(_, progress)| progress.now().is_over).ok_or_else(|| {
                let why = std::io::Error::other(format!("{MOST_LISTS} lists are being read already"));
                Error::host("read memory ahead", why)
            })?;
            ahead.remove(over);
        }
        let shared = Arc::clone(&self.shared);
        let progress = prefetch::ahead(runs, move |steps| {
            let filler = &shared.filler;
            let mut tools = filler.tools(FillReason::Ahead);
            steps.each(|Range { start, end }| {
                let mut chunks = start / filler.chunk_len()..end.div_ceil(filler.chunk_len());
                chunks.try_for_each(|chunk| filler.fill(chunk, &mut tools).map(drop))
            })
        })?;
        ahead.push((Arc::clone(runs), progress));
        Ok(())
    }

    fn fetched(&self, ahead: Option<&PageRanges>) -> Option<Fetched> {
        let filler = &self.shared.filler;
        let lists = lock(&self.ahead);
        let list = ahead.and_then(|runs| lists.iter().find(|(known, _)| known == runs));
        Some(Fetched {
            chunk_len: filler.chunk_len(),
            touched: filler.touched(),
            ahead: filler.ahead().collect(),
            prefetch: list.map(|(_, progress)| progress.now()),
            answered: None,
        })
    }

    fn answered(&self, number: u64) -> Option<FaultMetrics> {
        lock(&self.shared.served).get(&number).map(|served| served.answered.read())
    }
}

impl ServiceState {
    /// Starts another thread, up to the limit.
    fn begin_thread(self: &Arc<Self>) -> Result<()> {
        let mut threads = lock(&self.threads);
        if threads.stops || threads.running.len() >= MOST_THREADS {
            return Ok(());
        }
        let (shared, is_first) = (Arc::clone(self), threads.running.is_empty());
        // Counted before it runs, so that a second fault does not start another.
        self.idle.fetch_add(1, Ordering::Relaxed);
        let thread =
            threads::spawn(ThreadKind::Pager, "pager", move || shared.run(is_first)).inspect_err(|_| {
                self.idle.fetch_sub(1, Ordering::Relaxed);
            })?;
        threads.running.push(thread);
        Ok(())
    }

    /// As `begin_thread`, if faults are only slower without the thread.
    fn begin_next(self: &Arc<Self>) {
        if let Err(error) = self.begin_thread() {
            log::debug!("cannot start another thread to answer page faults: {}", report(&error));
        }
    }

    /// The body of the first thread, and of others.
    fn run(self: &Arc<Self>, is_first: bool) {
        let _notifier = PanicNotifier(self);
        let mut tools = None;
        // One event at a time, so other threads take the others.
        let mut events = Vec::with_capacity(1);
        loop {
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => {
                    log::error!("cannot wait for page faults, so they are no longer answered: {errno}");
                    return;
                }
            }
            for event in &events {
                let number = event.data.u64();
                if number == STOP {
                    return;
                }
                // The next fault may come while this thread reads from disk.
                let is_alone = self.idle.fetch_sub(1, Ordering::Relaxed) == 1;
                // With a second thread running, the first fault may be another one behind a cold read.
                let is_only = || lock(&self.threads).running.len() == 1;
                let answers_first = is_alone && is_first && tools.is_none() && number != WORK && is_only();
                if is_alone && !answers_first {
                    self.begin_next();
                }
                self.take(number, &mut tools);
                if answers_first {
                    self.begin_next();
                }
                self.idle.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn take<'s>(&'s self, number: u64, tools: &mut Option<ChunkTools<'s>>) {
        let made = || self.filler.tools(FillReason::Touched);
        if number == WORK {
            let mut count = [0; 8];
            let is_mine = rustix::io::read(&self.work, &mut count).is_ok();
            let fault = if is_mine { lock(&self.backlog).pop_front() } else { None };
            if let Some((served, chunk)) = fault {
                self.fetch(&served, chunk, tools.get_or_insert_with(made));
            }
            return;
        }
        let Some(served) = lock(&self.served).get(&number).cloned() else { return };
        if let Err(errno) = self.answer(&served, tools.get_or_insert_with(made)) {
            self.give_up(number, &served, errno);
        }
    }

    /// Removes a userfaultfd that cannot be read, which would be reported as ready again and again.
    fn give_up(&self, number: u64, served: &ServedVm, errno: Errno) {
        let _ = epoll::delete(&self.epoll, &*served.userfault);
        // Ends the service before forgetting the VM: a removed VM unmaps its memory at once, and another
        // thread may have one of its faults.
        served.end();
        lock(&self.served).remove(&number);
        let error = Error::host("read a VM's page faults", errno);
        (served.unreadable)(0..self.filler.len(), &error);
    }

    fn answer(&self, served: &Arc<ServedVm>, tools: &mut ChunkTools<'_>) -> rustix::io::Result<()> {
        let (len, chunk_len) = (self.filler.len(), self.filler.chunk_len());
        // There is mostly one.
        let (mut first, mut others) = (None, Vec::new());
        let each = |address: u64| match address.checked_sub(served.start) {
            Some(offset) if offset < len => {
                let chunk = offset / chunk_len;
                // Many may be for one chunk.
                if *first.get_or_insert(chunk) != chunk && others.last() != Some(&chunk) {
                    others.push(chunk);
                }
            }
            _ => log::error!("a page fault at {address:#x}, which is not guest memory"),
        };
        // Takes all, because the rest is not announced again.
        served.userfault.read_all(each)?;
        if !others.is_empty() {
            lock(&self.backlog).extend(others.iter().map(|chunk| (Arc::clone(served), *chunk)));
            signal(&self.work, others.len() as u64);
        }
        first.into_iter().for_each(|chunk| self.fetch(served, chunk, tools));
        Ok(())
    }

    /// Puts a chunk in place, and wakes all faults that wait for it by then.
    fn fetch(&self, served: &Arc<ServedVm>, chunk: u64, tools: &mut ChunkTools<'_>) {
        let began = Instant::now();
        if let Some(touched) = &self.touched {
            touched(self.filler.range(chunk).start);
        }
        let mut under_way = lock(&self.under_way);
        if let Some((_, waiting)) = under_way.iter_mut().find(|(other, _)| *other == chunk) {
            waiting.push((Arc::clone(served), began));
            return;
        }
        under_way.push((chunk, Vec::new()));
        drop(under_way);
        let fetched = FetchGuard { shared: self, chunk };
        let what = self.filler.fill(chunk, tools);
        let waiting = fetched.end();
        let kind = match what {
            Err(_) => FaultKind::Failed,
            Ok(Chunk::Zero) => FaultKind::Zero,
            Ok(Chunk::Bytes) if tools.has_read() => FaultKind::Read,
            Ok(Chunk::Bytes) => FaultKind::Present,
        };
        self.settle(served, chunk, &what);
        served.answered.add(kind, began.elapsed());
        for (served, began) in &waiting {
            self.settle(served, chunk, &what);
            let kind = if kind == FaultKind::Read { FaultKind::Present } else { kind };
            served.answered.add(kind, began.elapsed());
        }
    }

    fn settle(&self, served: &ServedVm, chunk: u64, what: &Result<Chunk>) {
        let range = self.filler.range(chunk);
        let wake = || served.userfault.wake(served.start + range.start, range.end - range.start);
        match what {
            Ok(what) => match self.lay(served, &range, *what) {
                Ok(()) => match served.while_served(wake) {
                    // A process that is gone has no waiting fault.
                    Err(error) if error != Errno::SRCH => {
                        let error = Error::host("wake a thread that waits for guest memory", error);
                        (served.unreadable)(range, &error);
                    }
                    _ => {}
                },
                Err(error) => (served.unreadable)(range, &error),
            },
            Err(error) => (served.unreadable)(range, error),
        }
    }

    /// Fetches a chunk without a fault.
    fn put(&self, served: &ServedVm, chunk: u64, tools: &mut ChunkTools<'_>) -> Result<()> {
        let range = self.filler.range(chunk);
        if let Some(touched) = &self.touched {
            touched(range.start);
        }
        let what = self.filler.fill(chunk, tools)?;
        self.lay(served, &range, what)
    }

    /// Zero chunks are not in the base: each VM maps its own zero pages.
    fn lay(&self, served: &ServedVm, range: &Range<u64>, what: Chunk) -> Result<()> {
        if what == Chunk::Bytes {
            return Ok(());
        }
        self.filler
            .patiently(FillReason::Touched, || served.while_served(|| zero(served, range)))
            .map_err(|errno| Error::host("replace guest memory by pages of zeros", errno))
    }
}

/// A chunk that a thread fetches. Dropped, the chunk is under way no more: a fault after a panic fetches it
/// again, and does not wait for a thread that is gone.
struct FetchGuard<'s> {
    shared: &'s ServiceState,
    chunk: u64,
}

impl FetchGuard<'_> {
    /// Ends the fetch. Returns the other VMs that waited for this chunk.
    fn end(self) -> Vec<WaitingVm> {
        let waiting = self.take();
        // Another thread may fetch the chunk again by now.
        std::mem::forget(self);
        waiting
    }

    fn take(&self) -> Vec<WaitingVm> {
        let mut under_way = lock(&self.shared.under_way);
        let place = under_way.iter().position(|(other, _)| *other == self.chunk);
        place.map(|place| under_way.swap_remove(place).1).unwrap_or_default()
    }
}

impl Drop for FetchGuard<'_> {
    fn drop(&mut self) {
        // All VMs are told of a panic (`PanicNotifier`).
        self.take();
    }
}

/// Ends the VMs whose faults a thread that panicked would have answered, and replaces the thread for VMs that
/// come later.
struct PanicNotifier<'s>(&'s Arc<ServiceState>);

impl Drop for PanicNotifier<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let error = Error::host(
                "answer page faults",
                std::io::Error::other(
                    "the thread that answers them has panicked, which is a bug of volt-vmm",
                ),
            );
            let all: Vec<_> = lock(&self.0.served).values().cloned().collect();
            all.iter().for_each(|served| (served.unreadable)(0..self.0.filler.len(), &error));
            // This thread answers no more faults: it counts neither towards the limit of threads nor as idle.
            lock(&self.0.threads).running.retain(|other| other.thread().id() != thread::current().id());
            if self.0.idle.load(Ordering::Relaxed) == 0 {
                self.0.begin_next();
            }
        }
    }
}
