//! The page faults of one VM's memory: answered by the service that fills its base, and refused after a
//! failure.
//!
//! ```text
//!   Answered ── fail() ──> Failed     the owner is told first, so that the VM ends for that reason; then each fault that
//!                                     cannot be answered is refused: who waits in it goes on without ever having seen a byte
//! ```
//!
//! A vCPU whose fault is refused leaves `KVM_RUN` with EFAULT, and a system call returns EFAULT. Devices
//! check [`super::presence`] first. A thread of this process that accesses the page itself gets SIGSEGV, or
//! SIGBUS if the page is poisoned: any other answer would be wrong content.
#![allow(unsafe_code)]

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::mm::MprotectFlags;

use super::userfault::Userfault;
use crate::counters::faults::FaultMetrics;
use crate::error::{Error, Result};
use crate::memory::PAGE;
use crate::memory::base::PageSize;
use crate::memory::lazy::known_pages::KnownPages;
use crate::memory::lazy::prefetch::{PageRanges, Reading};
use crate::memory::range::AddressRange;
use crate::progress::Progress;
use crate::sandbox::ThreadKind;
use crate::sync::lock;
use crate::threads;

/// The service that fills a base, as VMs see it: threads of this process ([`super::fault_service`]), or a
/// pager process.
pub trait FaultHandler: fmt::Debug + Send + Sync {
    /// The base, of guest memory's length. A hole in it is a zero page, or a missing one.
    fn base(&self) -> Arc<File>;

    /// The pages that the service fills.
    fn fills(&self) -> FilledPages {
        FilledPages::Base
    }

    /// The time that the service may take to fill a page, if it watches its pages itself: a VM whose page
    /// does not come within it ends.
    fn patience(&self) -> Option<Duration> {
        None
    }

    /// Size of the base's pages.
    fn page_size(&self) -> PageSize {
        PageSize::Small
    }

    /// Starts answering the page faults of a VM, whose memory is registered. Returns the number for
    /// [`FaultHandler::end`].
    ///
    /// # Errors
    /// The service cannot.
    fn begin(&self, faults: &Arc<Faults>) -> Result<u64>;

    /// Ends the service of a VM. Its memory lies in `range`, which nothing accesses any more. `range` is
    /// dropped, and so unmapped, once no late answer to a page fault can change memory that is mapped there
    /// next.
    fn end(&self, number: u64, range: AddressRange);

    /// Fetches the missing pages of a range of a VM's memory on this thread, so that touching them sends no
    /// message. Returns whether this process can do that.
    ///
    /// # Errors
    /// A chunk is unavailable.
    fn fetch(&self, number: u64, range: Range<u64>) -> Result<bool> {
        let (_, _) = (number, range);
        Ok(false)
    }

    /// Prepares for several faults at the same time, before a VM with more than one vCPU runs. A pager
    /// process prepares by itself.
    fn expect_several(&self) {}

    /// Completes the base: from then on a hole is a page of zeros. `progress` counts the bytes that this
    /// process fetches.
    ///
    /// # Errors
    /// A chunk is unavailable, or [`Error::Cancelled`].
    fn complete(&self, progress: &Progress) -> Result<()>;

    /// Starts fetching the missing pages of these ranges, in their order, and returns at once. A chunk that
    /// is unavailable then is left to the fault that touches it.
    ///
    /// # Errors
    /// The service cannot.
    fn prefetch(&self, runs: &PageRanges) -> Result<()>;

    /// Chunks fetched for all VMs over the base, and the progress of this VM's list. Absent if the service
    /// does not tell.
    fn fetched(&self, ahead: Option<&PageRanges>) -> Option<Fetched>;

    /// Page faults that this process answered for a VM. Absent if another process answers them.
    fn answered(&self, number: u64) -> Option<FaultMetrics> {
        let _ = number;
        None
    }
}

/// The pages that a service of page faults fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilledPages {
    /// Those of the base, for all VMs over it.
    Base,
    /// Those of each VM. The base stays empty, and a hole in it tells nothing about the page. The service
    /// learns which pages the VM returns to the host, and gives zeros for them from then on.
    Vm,
}

/// Chunks in a base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// Bytes of a chunk.
    pub chunk_len: u64,
    /// Number of chunks for which a fault waited.
    pub touched: u64,
    /// Offsets of the chunks that were read ahead.
    pub ahead: Vec<Range<u64>>,
    /// Progress of the VM's list, once reading it ahead has begun.
    pub prefetch: Option<Reading>,
    /// Page faults of the VM that a pager process answered.
    pub answered: Option<FaultMetrics>,
}

/// Time between two checks for threads that still wait.
const LOOK: Duration = Duration::from_millis(5);

/// Why memory of a VM of this process is unreadable: the first reason.
static UNREADABLE: OnceLock<String> = OnceLock::new();

/// Why guest memory is unreadable, if some of it in this process is. Async-signal-safe, for a handler of
/// SIGSEGV and SIGBUS, which a thread gets that reads unavailable memory.
#[must_use]
pub fn unreadable_memory() -> Option<&'static str> {
    UNREADABLE.get().map(String::as_str)
}

type Tell = Box<dyn FnOnce(String) + Send>;

/// See the module. The memory stays mapped as long as this lives, or slightly less.
pub struct Faults {
    userfault: Arc<Userfault>,
    start: u64,
    len: u64,
    failure: Mutex<Failure>,
    there: Arc<KnownPages>,
    handler: Arc<dyn FaultHandler>,
    number: OnceLock<u64>,
    /// Locked while the mapping is changed.
    is_mapped: Mutex<bool>,
}

#[derive(Default)]
struct Failure {
    why: Option<String>,
    tell: Option<Tell>,
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faults").field("handler", &self.handler).finish_non_exhaustive()
    }
}

impl Faults {
    /// Starts answering the faults of `len` bytes at `start`, where the base of `handler` is mapped. Nothing
    /// has touched that memory yet.
    ///
    /// # Errors
    /// The host refuses.
    pub(crate) fn of(start: *mut u8, len: u64, handler: Arc<dyn FaultHandler>) -> Result<Arc<Self>> {
        let userfault = Arc::new(match handler.fills() {
            FilledPages::Base => Userfault::new()?,
            FilledPages::Vm => Userfault::reporting_drops()?,
        });
        let start = start as u64;
        userfault
            .register(start, len)
            .map_err(|errno| Error::host("watch guest memory for pages that are missing", errno))?;
        let (failure, number) = (Mutex::default(), OnceLock::new());
        let (there, is_mapped) = (Arc::new(KnownPages::new(len)), Mutex::new(true));
        let faults = Arc::new(Self { userfault, start, len, failure, there, handler, number, is_mapped });
        let number = faults.handler.begin(&faults)?;
        let _ = faults.number.set(number);
        Ok(faults)
    }

    /// The userfaultfd. This process keeps it open as long as the memory is mapped: closing the last
    /// descriptor would turn all missing pages into pages of zeros.
    #[must_use]
    pub fn userfault(&self) -> &Arc<Userfault> {
        &self.userfault
    }

    /// Address of the memory in this process.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Length of the memory in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The pages known to be present.
    pub(crate) fn there(&self) -> &Arc<KnownPages> {
        &self.there
    }

    /// Whether a fault waits that no thread has read yet.
    #[must_use]
    pub fn is_waited_for(&self) -> bool {
        self.userfault.has_faults()
    }

    /// Whether a thread waits for a page or for a read of an event.
    #[must_use]
    pub fn has_waiting_thread(&self) -> bool {
        self.userfault.is_waited_for().unwrap_or_else(|error| {
            log::debug!("cannot tell whether a page fault waits: {error}");
            // A fault that was read shows again at the next look.
            let is_waited_for = self.is_waited_for();
            self.requeue_unanswered();
            is_waited_for
        })
    }

    /// The runs of a range that the guest has not returned to the host.
    pub(crate) fn needed(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        page_ranges(range, PAGE, |page| !self.there.is_given_back(page))
    }

    /// Makes faults that were read and not answered come again.
    pub fn requeue_unanswered(&self) {
        let is_mapped = lock(&self.is_mapped);
        if *is_mapped {
            let _ = self.userfault.wake(self.start, self.len);
        }
    }

    /// The service that answers them.
    #[must_use]
    pub fn handler(&self) -> &Arc<dyn FaultHandler> {
        &self.handler
    }

    /// Completes the base. From then on a hole in it is a page of zeros.
    ///
    /// # Errors
    /// As [`FaultHandler::complete`]. The VM runs on.
    pub fn complete(&self, progress: &Progress) -> Result<()> {
        self.handler.complete(progress)
    }

    /// Fetches a range of memory on this thread, if this process answers the faults. Returns whether it does.
    ///
    /// # Errors
    /// A part is unavailable.
    pub fn fetch(&self, range: Range<u64>) -> Result<bool> {
        self.number.get().map_or(Ok(false), |number| self.handler.fetch(*number, range))
    }

    /// Page faults that this process answered, as [`FaultHandler::answered`].
    pub(crate) fn answered(&self) -> Option<FaultMetrics> {
        self.number.get().and_then(|number| self.handler.answered(*number))
    }

    /// Sets the act for unavailable memory, which runs once; at once if memory is unavailable already.
    pub fn when_unreadable(&self, tell: impl FnOnce(String) + Send + 'static) {
        let mut failure = lock(&self.failure);
        match failure.why.clone() {
            None => failure.tell = Some(Box::new(tell)),
            Some(why) => {
                drop(failure);
                tell(why);
            }
        }
    }

    /// Records that memory is unavailable. The first reason counts.
    pub fn fail(&self, why: &str) {
        let mut failure = lock(&self.failure);
        if failure.why.is_some() {
            return;
        }
        failure.why = Some(why.to_owned());
        self.there.fail();
        let tell = failure.tell.take();
        drop(failure);
        let _ = UNREADABLE.set(why.to_owned());
        if let Some(tell) = tell {
            tell(why.to_owned());
        }
    }

    /// The reason of the failure, if there was one.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        lock(&self.failure).why.clone()
    }

    /// Whether memory is unavailable.
    #[cfg(test)]
    pub(crate) fn has_failed(&self) -> bool {
        lock(&self.failure).why.is_some()
    }

    /// Refuses a range: makes it unreadable, except pages that a device may be using. Pages known to be
    /// present stay, and those that the guest returned become zero. Wakes the faults that wait for it. The VM
    /// is told before.
    pub fn refuse(&self, range: Range<u64>) {
        let page_size = self.handler.page_size();
        let pages = page_size.around(&(range.start.min(self.len)..range.end.min(self.len)));
        let (start, len) = (self.start + pages.start, pages.end.saturating_sub(pages.start));
        let is_mapped = lock(&self.is_mapped);
        if !*is_mapped || len == 0 {
            return;
        }
        let no_access = |Range { start, end }: Range<u64>| {
            let at = (self.start + start) as *mut std::ffi::c_void;
            // SAFETY: the range is mapped guest memory, into which no Rust reference points. A thread that
            // accesses it gets a signal, as intended: the content is unavailable.
            unsafe { rustix::mm::mprotect(at, (end - start) as usize, MprotectFlags::empty()) }
        };
        for run in page_ranges(pages.clone(), PAGE, |page| self.there.is_given_back(page)) {
            for page in run.step_by(PAGE as usize) {
                // It fails if another file is mapped there, whose pages are present.
                let _ = self.userfault.zero(self.start + page, PAGE);
            }
        }
        let is_spared = |page| self.there.has(page) || self.there.is_given_back(page);
        // A huge page is there as a whole.
        let is_refused = |page| !(page..page + page_size.bytes()).step_by(PAGE as usize).any(is_spared);
        // The second and third way need fewer mappings, in case these are short. Poison (Linux 6.6) is not
        // the first: KVM takes a poisoned page for broken hardware and sends the vCPU's thread SIGBUS.
        let refused = page_ranges(pages.clone(), page_size.bytes(), is_refused)
            .try_for_each(no_access)
            .or_else(|_| self.userfault.poison(start, len))
            .or_else(|_| no_access(pages));
        if let Err(errno) = refused {
            // The faults go on waiting, which harms no data.
            log::error!(
                "cannot withdraw unavailable guest memory, so threads that touch it keep waiting: {errno}"
            );
            return;
        }
        let _ = self.userfault.wake(start, len);
    }

    /// Ends the service of the memory in `range`, which is unmapped once no answer can change it. Nothing
    /// accesses it.
    pub(crate) fn end(&self, range: AddressRange) {
        *lock(&self.is_mapped) = false;
        if let Some(number) = self.number.get() {
            self.handler.end(*number, range);
        }
    }

    /// Wakes all threads that wait for memory now, in whatever way it is filled. Must be repeated: woken
    /// threads fault again.
    pub fn let_go(&self, why: &str) {
        self.fail(why);
        // The service may have read faults without answering them, so they are announced anew.
        let _ = self.userfault.wake(self.start, self.len);
        let within = |address: u64| address.checked_sub(self.start).filter(|offset| *offset < self.len);
        // All are read first: no range can be filled while an event waits.
        let mut addresses = Vec::new();
        while self.userfault.read(|address| addresses.push(address)).is_ok_and(|count| count > 0) {}
        addresses.into_iter().filter_map(within).for_each(|page| self.refuse(page..page + PAGE));
    }

    /// Waits for `patience`, then wakes all threads that wait for memory, again and again. Dropping the
    /// result ends this.
    ///
    /// # Errors
    /// The host gives no thread.
    pub fn let_go_after(self: &Arc<Self>, patience: Duration, why: &'static str) -> Result<FaultDeadline> {
        let over = Arc::new((Mutex::new(false), Condvar::new()));
        let (faults, ended) = (Arc::clone(self), Arc::clone(&over));
        let wait = move || {
            let (over, changed) = &*ended;
            let mut wait = patience;
            loop {
                let guard = lock(over);
                let (over, _) = changed
                    .wait_timeout_while(guard, wait, |over| !*over)
                    .unwrap_or_else(std::sync::PoisonError::into_inner);
                if *over {
                    return;
                }
                drop(over);
                faults.let_go(why);
                wait = LOOK;
            }
        };
        let thread = threads::spawn(ThreadKind::Worker, "let-go", wait)?;
        Ok(FaultDeadline { over, thread: Some(thread) })
    }
}

/// Ranges of the pages of `bytes` for which `is_one` returns true.
fn page_ranges(
    range: Range<u64>,
    bytes: u64,
    is_one: impl Fn(u64) -> bool,
) -> impl Iterator<Item = Range<u64>> {
    let mut pages = range.step_by(bytes as usize).filter(move |page| is_one(*page)).peekable();
    std::iter::from_fn(move || {
        let start = pages.next()?;
        let mut end = start + bytes;
        while pages.next_if_eq(&end).is_some() {
            end += bytes;
        }
        Some(start..end)
    })
}

/// An act that must not wait for memory without limit. Dropping it ends the limit.
#[derive(Debug)]
pub struct FaultDeadline {
    over: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for FaultDeadline {
    fn drop(&mut self) {
        *lock(&self.over.0) = true;
        self.over.1.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
