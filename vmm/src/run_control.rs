//! Run control: the agreement between a VM's vCPU threads and the threads that start, park or end them.
//!
//! ```text
//!              start()                 end()
//!   Parked ─────────────> Running ─────────────> Ended      (ended: parked for good)
//!     ^                      │
//!     └──────────────────────┘
//!               park()                any state ── quit() ──> the threads return
//! ```
//!
//! A parked vCPU has left `KVM_RUN` and finished its last exit.

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
    /// The guest asked for a reset. The VM ends; its owner may boot another.
    Reboot,
    /// The guest's CPU shut down: a fault in the handler of a double fault.
    TripleFault,
    /// [`crate::Vm::stop`] ended the guest.
    Stopped,
}

/// State of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// The vCPUs run.
    Running,
    /// The vCPUs are parked, and can resume.
    Paused,
    /// The guest has ended.
    Ended,
}

/// The end of a thread's turns at running its vCPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// [`Control::quit`], for the VM's own threads.
    Quit,
    /// The guest's end, for a lent thread.
    GuestEnds,
}

/// Brings one vCPU out of `KVM_RUN`.
pub(crate) trait Kick: Debug + Send + Sync {
    /// Brings the vCPU out, now or when it next enters.
    fn send(&self);

    /// Clears the effect of [`Kick::send`]. Called on the vCPU's thread.
    fn forget(&self);
}

/// The command to the vCPU threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Want {
    Park,
    Run,
    Quit,
}

/// See the module. The threads, the devices that can end a guest, and the VM share it.
#[derive(Debug)]
pub struct Control {
    /// Whether running vCPUs must leave the guest: `want != Run`, readable without the lock.
    come_out: AtomicBool,
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Debug)]
struct Inner {
    want: Want,
    /// The guest's ending, or a description of its crash.
    end: Option<std::result::Result<Ending, String>>,
    /// Kicks of the vCPUs that are not parked.
    kicks: Vec<Arc<dyn Kick>>,
    /// Acts that run when the guest ends.
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

    /// State of the VM.
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

    /// Parks all vCPUs, and waits until they are parked.
    pub(crate) fn park(&self) {
        let mut inner = lock(&self.inner);
        if inner.want == Want::Run {
            self.want(&mut inner, Want::Park);
        }
        drop(wait_while(&self.changed, inner, |inner| !inner.kicks.is_empty()));
    }

    /// Ends the guest. The first ending counts. Does not wait for the vCPUs, because devices call this on a
    /// vCPU's thread.
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

    /// Runs `act` when the guest ends, on the thread that ends it and before its vCPUs are parked; at once if
    /// the guest has ended.
    pub(crate) fn at_end(&self, act: impl FnOnce() + Send + 'static) {
        let mut inner = lock(&self.inner);
        inner.at_end.0.push(Box::new(act));
        if inner.end.is_some() {
            Self::has_ended(inner);
        }
    }

    /// Waits at most `patience` until all vCPUs are parked. Returns whether they are.
    pub(crate) fn wait_parked(&self, patience: Duration) -> bool {
        let inner = lock(&self.inner);
        let wait = self.changed.wait_timeout_while(inner, patience, |inner| !inner.kicks.is_empty());
        wait.unwrap_or_else(PoisonError::into_inner).0.kicks.is_empty()
    }

    /// Tells the threads to return. The caller of their spawn joins them.
    pub(crate) fn quit(&self) {
        let mut inner = lock(&self.inner);
        inner.end.get_or_insert(Ok(Ending::Stopped));
        self.want(&mut inner, Want::Quit);
        Self::has_ended(inner);
    }

    /// Waits until the guest has ended and its vCPUs are parked.
    ///
    /// # Errors
    /// [`Error::Crashed`] if the guest crashed.
    pub(crate) fn wait_end(&self) -> Result<Ending> {
        let inner = lock(&self.inner);
        let inner = wait_while(&self.changed, inner, |inner| inner.end.is_none() || !inner.kicks.is_empty());
        inner.end.clone().unwrap_or(Ok(Ending::Stopped)).map_err(Error::Crashed)
    }

    /// Waits at most `timeout` until the guest has ended and its vCPUs are parked. Returns whether both hold.
    pub(crate) fn wait_end_for(&self, timeout: Duration) -> bool {
        let is_on = |inner: &mut Inner| inner.end.is_none() || !inner.kicks.is_empty();
        let wait = self.changed.wait_timeout_while(lock(&self.inner), timeout, is_on);
        !wait.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Whether running vCPUs must leave the guest: `want != Run`, readable without the lock.
    pub(crate) fn come_out(&self) -> bool {
        self.come_out.load(Ordering::Relaxed)
    }

    /// Waits for the next turn of a vCPU's thread. Returns false if the thread must return for good.
    pub(crate) fn wait_for_turn(&self, kick: &Arc<dyn Kick>, until: Until) -> bool {
        let over =
            |inner: &Inner| inner.want == Want::Quit || until == Until::GuestEnds && inner.end.is_some();
        let waits = |inner: &mut Inner| inner.want == Want::Park && !over(inner);
        let mut inner = wait_while(&self.changed, lock(&self.inner), waits);
        if over(&inner) {
            return false;
        }
        // Under the lock: a kick comes before this, and `want` is no longer Run, or it comes after this and
        // stays.
        kick.forget();
        inner.kicks.push(Arc::clone(kick));
        true
    }

    /// Marks a vCPU as parked. Called by its thread.
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
