//! Who runs and who waits: the one agreement between a VM's vCPU threads and everyone who starts, parks or ends them.
//!
//! ```text
//!              start()                 end()
//!   Parked ─────────────> Running ─────────────> Ended      (ended: parked for good)
//!     ^                      │
//!     └──────────────────────┘
//!               park()                any state ── quit() ──> the threads return
//! ```
//!
//! A vCPU that parks has left `KVM_RUN` and has finished the exit it was in.

use std::fmt::{Debug, Formatter};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::sync::{lock, wait_while};

/// How a guest ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The guest powered itself off.
    Poweroff,
    /// The guest asked for a reset. A VM does not start over by itself.
    Reboot,
    /// The guest's CPU gave up: a fault in the handler of a fault in a handler.
    TripleFault,
    /// [`crate::Vm::stop`].
    Stopped,
}

/// What a VM is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// Its vCPUs run.
    Running,
    /// Its vCPUs are parked, and can go on.
    Paused,
    /// Its guest has ended.
    Ended,
}

/// How long a thread takes turns at running its vCPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// The VM's own threads.
    Quit,
    /// A lent one.
    GuestEnds,
}

/// Brings one vCPU out of `KVM_RUN`.
pub(crate) trait Kick: Debug + Send + Sync {
    /// Brings the vCPU out, now or when it next enters.
    fn send(&self);

    /// Takes back what [`Kick::send`] did. On the vCPU's own thread.
    fn forget(&self);
}

/// What the vCPU threads are to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Want {
    Park,
    Run,
    Quit,
}

/// The agreement. Shared by the threads, the devices that can end a guest, and the VM.
#[derive(Debug)]
pub struct Control {
    /// Whether running vCPUs are asked to come out: `want != Run`, for a look without the lock.
    come_out: AtomicBool,
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Debug)]
struct Inner {
    want: Want,
    /// How the guest ended, once it has. A crash is its description.
    end: Option<std::result::Result<Ending, String>>,
    /// vCPUs that are not parked.
    kicks: Vec<Arc<dyn Kick>>,
    /// What is done once the guest has ended.
    at_end: AtEnd,
}

#[derive(Default)]
struct AtEnd(Vec<Box<dyn FnOnce() + Send>>);

impl Debug for AtEnd {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("AtEnd").field(&self.0.len()).finish()
    }
}

impl Control {
    pub(crate) fn new() -> Arc<Self> {
        let (kicks, at_end) = (Vec::new(), AtEnd::default());
        let inner = Inner { want: Want::Park, end: None, kicks, at_end };
        Arc::new(Self { come_out: AtomicBool::new(true), inner: Mutex::new(inner), changed: Condvar::new() })
    }

    /// What the VM is doing.
    pub fn state(&self) -> RunState {
        let inner = lock(&self.inner);
        match (&inner.end, inner.want) {
            (Some(_), _) => RunState::Ended,
            (None, Want::Run) => RunState::Running,
            (None, _) => RunState::Paused,
        }
    }

    /// Lets all vCPUs run, unless the guest has ended.
    pub(crate) fn start(&self) {
        let mut inner = lock(&self.inner);
        if inner.end.is_none() {
            self.want(&mut inner, Want::Run);
        }
    }

    /// Brings all vCPUs to a halt, and returns when they are.
    pub(crate) fn park(&self) {
        let mut inner = lock(&self.inner);
        if inner.want == Want::Run {
            self.want(&mut inner, Want::Park);
        }
        drop(wait_while(&self.changed, inner, |inner| !inner.kicks.is_empty()));
    }

    /// Ends the guest; the first end counts. Does not wait for the vCPUs: a device calls this on a vCPU's thread.
    pub(crate) fn end(&self, how: std::result::Result<Ending, String>) {
        let mut inner = lock(&self.inner);
        inner.end.get_or_insert(how);
        if inner.want == Want::Run {
            self.want(&mut inner, Want::Park);
        }
        self.changed.notify_all();
        Self::has_ended(inner);
    }

    fn has_ended(mut inner: MutexGuard<'_, Inner>) {
        let at_end = std::mem::take(&mut inner.at_end.0);
        drop(inner);
        at_end.into_iter().for_each(|act| act());
    }

    /// Has something done once the guest has ended, by whoever ends it, without waiting for its vCPUs: now, if it has.
    pub(crate) fn at_end(&self, act: impl FnOnce() + Send + 'static) {
        let mut inner = lock(&self.inner);
        inner.at_end.0.push(Box::new(act));
        if inner.end.is_some() {
            Self::has_ended(inner);
        }
    }

    /// Waits until all vCPUs are parked, at most so long, and says whether they are.
    pub(crate) fn wait_parked(&self, patience: Duration) -> bool {
        let inner = lock(&self.inner);
        let wait = self.changed.wait_timeout_while(inner, patience, |inner| !inner.kicks.is_empty());
        wait.unwrap_or_else(PoisonError::into_inner).0.kicks.is_empty()
    }

    /// Tells the threads to return. They are joined by whoever spawned them.
    pub(crate) fn quit(&self) {
        let mut inner = lock(&self.inner);
        inner.end.get_or_insert(Ok(Ending::Stopped));
        self.want(&mut inner, Want::Quit);
        Self::has_ended(inner);
    }

    /// Waits until the guest has ended and its vCPUs are parked.
    ///
    /// # Errors
    /// [`Error::Crashed`] when it did not end by itself.
    pub(crate) fn wait_end(&self) -> Result<Ending> {
        let inner = lock(&self.inner);
        let inner = wait_while(&self.changed, inner, |inner| inner.end.is_none() || !inner.kicks.is_empty());
        inner.end.clone().unwrap_or(Ok(Ending::Stopped)).map_err(Error::Crashed)
    }

    /// Waits at most `timeout` until the guest has ended and its vCPUs are parked. Returns whether that is so.
    pub(crate) fn wait_end_for(&self, timeout: Duration) -> bool {
        let is_on = |inner: &mut Inner| inner.end.is_none() || !inner.kicks.is_empty();
        let wait = self.changed.wait_timeout_while(lock(&self.inner), timeout, is_on);
        !wait.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Whether running vCPUs are asked to come out.
    pub(crate) fn come_out(&self) -> bool {
        self.come_out.load(Ordering::Relaxed)
    }

    /// Waits for a turn of a vCPU's thread. Returns false when the thread is to return for good.
    pub(crate) fn wait_for_turn(&self, kick: &Arc<dyn Kick>, until: Until) -> bool {
        let over =
            |inner: &Inner| inner.want == Want::Quit || until == Until::GuestEnds && inner.end.is_some();
        let waits = |inner: &mut Inner| inner.want == Want::Park && !over(inner);
        let mut inner = wait_while(&self.changed, lock(&self.inner), waits);
        if over(&inner) {
            return false;
        }
        // Under the lock: a kick comes either before this, with `want` no longer Run, or after it and is not forgotten.
        kick.forget();
        inner.kicks.push(Arc::clone(kick));
        true
    }

    /// A vCPU's thread says that it has come out.
    pub(crate) fn parked(&self, kick: &Arc<dyn Kick>) {
        lock(&self.inner).kicks.retain(|other| !Arc::ptr_eq(other, kick));
        self.changed.notify_all();
    }

    fn want(&self, inner: &mut Inner, want: Want) {
        inner.want = want;
        self.come_out.store(want != Want::Run, Ordering::Relaxed);
        if want != Want::Run {
            inner.kicks.iter().for_each(|kick| kick.send());
        }
        self.changed.notify_all();
    }
}
