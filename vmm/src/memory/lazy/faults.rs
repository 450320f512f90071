//! The page faults of one VM's memory: answered by whoever fills its base, and refused once that has failed.
//!
//! ```text
//!   Answered ── fail() ──> Failed     the owner is told first, so that the VM ends for that reason; then each fault that
//!                                     cannot be answered is refused: who waits in it goes on without ever having seen a byte
//! ```
//!
//! A vCPU whose fault is refused comes out of `KVM_RUN` with EFAULT. A system call has EFAULT for an answer.
//! Devices ask [`super::presence`] first. A thread of this process that reads or writes the page itself gets
//! SIGSEGV (SIGBUS where the page is poisoned): there is no other answer that is not wrong content.
#![allow(unsafe_code)]

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::mm::MprotectFlags;

use super::userfault::Userfault;
use crate::error::{Error, Result};
use crate::memory::PAGE;
use crate::memory::lazy::known_pages::There;
use crate::memory::lazy::prefetch::{Reading, Runs};
use crate::memory::range::AddressRange;
use crate::sync::lock;
use crate::threads;

/// Fills a base, as the VMs over it know it: threads of this process ([`super::fault_service`]), or a pager process.
pub trait Paging: fmt::Debug + Send + Sync {
    /// The base: a hole in it is a page that is zero, or not there yet. As long as memory.
    fn base(&self) -> Arc<File>;

    /// Begins to answer a VM's page faults. Its memory is registered. Gives what [`Paging::end`] knows it by.
    ///
    /// # Errors
    /// Nobody can.
    fn begin(&self, faults: &Arc<Faults>) -> Result<u64>;

    /// Ends the service of a VM. Its memory lies in `range`, which nobody accesses any more. It is dropped,
    /// and so unmapped, once no late answer to a page fault can change what is mapped there next.
    fn end(&self, number: u64, range: AddressRange);

    /// Fetches what is in a range of a VM's memory and not there yet, on this thread: afterwards it is
    /// touched without a message. Says whether that can be done here.
    ///
    /// # Errors
    /// A chunk cannot be had.
    fn bring(&self, number: u64, range: Range<u64>) -> Result<bool> {
        let (_, _) = (number, range);
        Ok(false)
    }

    /// Prepares for several faults at the same time, before a VM with more than one vCPU runs. A pager process
    /// prepares by itself.
    fn expect_several(&self) {}

    /// Fills all that is not there yet: from then on a hole is a page of zeros.
    ///
    /// # Errors
    /// A chunk cannot be had.
    fn complete(&self) -> Result<()>;

    /// Begins to fetch what is in these ranges and not there yet, in their order. Returns at once; a chunk that cannot be had then is left
    /// for whoever touches it.
    ///
    /// # Errors
    /// Nobody can.
    fn prefetch(&self, runs: &Runs) -> Result<()>;

    /// What has been fetched for all VMs over the base, and how far reading ahead is of the list that this
    /// VM has named. None where whoever does it does not say.
    fn fetched(&self, ahead: Option<&Runs>) -> Option<Fetched>;
}

/// Chunks that are in a base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// Bytes of a chunk.
    pub chunk_len: u64,
    /// How many were fetched because somebody waited for them.
    pub touched: u64,
    /// Where those are that were fetched before.
    pub ahead: Vec<Range<u64>>,
    /// How far reading ahead of the VM's list is, once it has begun.
    pub prefetch: Option<Reading>,
}

/// Between two looks at who still waits.
const LOOK: Duration = Duration::from_millis(5);

/// The reason why memory of a VM of this process cannot be read: of the first one.
static UNREADABLE: OnceLock<String> = OnceLock::new();

/// Why guest memory cannot be read, if some of it in this process cannot. Async-signal-safe: for a handler of SIGSEGV and SIGBUS,
/// which a thread gets that reads memory which is not to be had.
#[must_use]
pub fn unreadable_memory() -> Option<&'static str> {
    UNREADABLE.get().map(String::as_str)
}

/// How a page is made such that nobody reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No access to it: any kernel can. Who is in the kernel has EFAULT.
    NoAccess,
    /// Poison (Linux 6.6). KVM takes it for broken hardware, and sends the vCPU's thread SIGBUS instead of an answer: only where a
    /// mapping cannot be split any more.
    #[cfg_attr(not(test), expect(dead_code, reason = "the second choice"))]
    Poison,
}

type Tell = Box<dyn FnOnce(String) + Send>;

/// See the module. The memory is mapped for as long as there is this, or a little less.
pub struct Faults {
    userfault: Arc<Userfault>,
    start: u64,
    len: u64,
    refusal: Refusal,
    failure: Mutex<Failure>,
    there: Arc<There>,
    paging: Arc<dyn Paging>,
    number: OnceLock<u64>,
    /// Held while the mapping is changed.
    is_mapped: Mutex<bool>,
}

#[derive(Default)]
struct Failure {
    why: Option<String>,
    tell: Option<Tell>,
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faults").field("paging", &self.paging).finish_non_exhaustive()
    }
}

impl Faults {
    /// Has the faults of `len` bytes at `start`, where the base of `paging` is mapped, answered. Nobody has touched that memory yet.
    ///
    /// # Errors
    /// The host refuses.
    pub(crate) fn of(
        start: *mut u8,
        len: u64,
        paging: Arc<dyn Paging>,
        refusal: Refusal,
    ) -> Result<Arc<Self>> {
        let userfault = Arc::new(Userfault::new()?);
        let start = start as u64;
        userfault
            .register(start, len)
            .map_err(|errno| Error::host("watch guest memory for pages that are missing", errno))?;
        let (failure, number) = (Mutex::default(), OnceLock::new());
        let (there, is_mapped) = (Arc::new(There::new(len)), Mutex::new(true));
        let faults =
            Arc::new(Self { userfault, start, len, refusal, failure, there, paging, number, is_mapped });
        let number = faults.paging.begin(&faults)?;
        let _ = faults.number.set(number);
        Ok(faults)
    }

    /// Where they come from. This process keeps it open for as long as the memory is mapped: were the last descriptor closed,
    /// the kernel would make pages of zeros of all that is missing.
    #[must_use]
    pub fn userfault(&self) -> &Arc<Userfault> {
        &self.userfault
    }

    /// Where the memory lies in this process.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Bytes of it.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The pages that are known to be there.
    pub(crate) fn there(&self) -> &Arc<There> {
        &self.there
    }

    /// Whether somebody waits for a page and no thread has read that yet.
    #[must_use]
    pub fn is_waited_for(&self) -> bool {
        self.userfault.has_faults()
    }

    /// Has faults come again that were read and are not answered yet.
    pub fn ask_again(&self) {
        let is_mapped = lock(&self.is_mapped);
        if *is_mapped {
            let _ = self.userfault.wake(self.start, self.len);
        }
    }

    /// Who answers them.
    #[must_use]
    pub fn paging(&self) -> &Arc<dyn Paging> {
        &self.paging
    }

    /// Fetches all that is not in the base yet. From then on a hole in that is a page of zeros.
    ///
    /// # Errors
    /// A chunk cannot be had. The VM goes on.
    pub fn complete(&self) -> Result<()> {
        self.paging.complete()
    }

    /// Fetches a range of memory on this thread, if whoever answers the faults is this process: says whether
    /// it is.
    ///
    /// # Errors
    /// Some of it cannot be had.
    pub fn bring(&self, range: Range<u64>) -> Result<bool> {
        self.number.get().map_or(Ok(false), |number| self.paging.bring(*number, range))
    }

    /// Says whom to tell when memory cannot be had, once: at once if that has happened.
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

    /// Some of the memory cannot be had. The first reason counts.
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

    /// Why it has failed, if it has.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        lock(&self.failure).why.clone()
    }

    /// Whether it has failed.
    #[cfg(test)]
    pub(crate) fn has_failed(&self) -> bool {
        lock(&self.failure).why.is_some()
    }

    /// Makes a range such that nobody can read it, but for what a device may have in hand: pages that are known
    /// to be there stay, and those that the guest gave back become zero. Lets those go that wait for it. The VM
    /// must have been told.
    pub fn refuse(&self, range: Range<u64>) {
        let (from, to) = (range.start.min(self.len), range.end.min(self.len));
        let (start, len) = (self.start + from, to.saturating_sub(from));
        let is_mapped = lock(&self.is_mapped);
        if !*is_mapped || len == 0 {
            return;
        }
        let no_access = |Range { start, end }: Range<u64>| {
            let at = (self.start + start) as *mut std::ffi::c_void;
            // SAFETY: it is guest memory, still mapped, which nobody has Rust references to. Who accesses it gets a signal, which is
            // what is wanted: the content cannot be had.
            unsafe { rustix::mm::mprotect(at, (end - start) as usize, MprotectFlags::empty()) }
        };
        let pages = from / PAGE * PAGE..to;
        for run in runs(pages.clone(), |page| self.there.is_given_back(page)) {
            for page in run.step_by(PAGE as usize) {
                // It fails where another file is mapped, whose pages are there.
                let _ = self.userfault.zero(self.start + page, PAGE);
            }
        }
        let is_refused = |page| !self.there.has(page) && !self.there.is_given_back(page);
        let all_but_spared = || runs(pages.clone(), is_refused).try_for_each(no_access);
        let poison = || self.userfault.poison(start, len);
        let refused = match self.refusal {
            // The last makes fewer mappings, if that is what is short.
            Refusal::NoAccess => all_but_spared().or_else(|_| poison()).or_else(|_| no_access(from..to)),
            Refusal::Poison => poison().or_else(|_| all_but_spared()),
        };
        if let Err(errno) = refused {
            // Who waits goes on waiting, which harms nobody's data.
            log::error!("cannot take guest memory away: {errno}");
            return;
        }
        let _ = self.userfault.wake(start, len);
    }

    /// Ends the service of the memory in `range`, which is unmapped once nothing can be done to it any more.
    /// Nobody accesses it.
    pub(crate) fn end(&self, range: AddressRange) {
        *lock(&self.is_mapped) = false;
        if let Some(number) = self.number.get() {
            self.paging.end(*number, range);
        }
    }

    /// Lets all go that wait for memory now, however it is filled. To be called again and again: who is woken comes back.
    pub fn let_go(&self, why: &str) {
        self.fail(why);
        // Who filled it may have read faults, and have answered none of them: they are told anew.
        let _ = self.userfault.wake(self.start, self.len);
        let within = |address: u64| address.checked_sub(self.start).filter(|offset| *offset < self.len);
        let refuse = |address| within(address).into_iter().for_each(|page| self.refuse(page..page + PAGE));
        while self.userfault.read(refuse).is_ok_and(|count| count > 0) {}
    }

    /// Waits for so long, unless what is given is dropped before; then lets all go that wait for memory, until it is dropped.
    ///
    /// # Errors
    /// The host gives no thread.
    pub fn let_go_after(self: &Arc<Self>, patience: Duration, why: &'static str) -> Result<LetGo> {
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
        let thread = threads::spawn("let-go", wait)?;
        Ok(LetGo { over, thread: Some(thread) })
    }
}

/// The runs of those pages in a range of whole pages that `is_one` says are.
fn runs(range: Range<u64>, is_one: impl Fn(u64) -> bool) -> impl Iterator<Item = Range<u64>> {
    let mut pages = range.step_by(PAGE as usize).filter(move |page| is_one(*page)).peekable();
    std::iter::from_fn(move || {
        let start = pages.next()?;
        let mut end = start + PAGE;
        while pages.next_if_eq(&end).is_some() {
            end += PAGE;
        }
        Some(start..end)
    })
}

/// What somebody does who may not wait for memory for ever; over when dropped.
#[derive(Debug)]
pub struct LetGo {
    over: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for LetGo {
    fn drop(&mut self) {
        *lock(&self.over.0) = true;
        self.over.1.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
