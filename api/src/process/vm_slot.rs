//! The slot of the one VM that a process runs: empty until a boot or a load, then taken for the rest of the
//! process's life.
//!
//! ```text
//! Empty --start--> Starting --ok--> Taken        close(), at any stage: stops the VM, refuses later starts
//!   ^                 |
//!   +-----failed------+
//! ```

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use volt_vmm::{Error, Pool, Result, Vm};

/// Firecracker's default name of a VM.
pub(crate) const DEFAULT_ID: &str = "anonymous-instance";

/// The slot of the one VM of this process.
#[derive(Debug)]
pub(crate) struct Slot {
    /// The VM's name.
    id: String,
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Debug)]
struct Inner {
    stage: Stage,
    closed: bool,
    /// A VM created ahead of a load, until the slot is taken.
    prewarmed: Option<Arc<Pool>>,
}

/// The VM's state in errors of a closed slot.
const BEING_ENDED: &str = "is being ended";

#[derive(Debug)]
enum Stage {
    Empty,
    Starting,
    Taken(Arc<Vm>),
}

impl Slot {
    /// Creates an empty slot.
    pub(crate) fn new() -> Self {
        Self::with_id(DEFAULT_ID.to_owned())
    }

    /// Creates an empty slot whose VM has this name.
    pub(crate) fn with_id(id: String) -> Self {
        let inner = Inner { stage: Stage::Empty, closed: false, prewarmed: None };
        Self { id, inner: Mutex::new(inner), changed: Condvar::new() }
    }

    /// Creates an empty slot whose VM has this name, with a prewarmed VM for a load.
    pub(crate) fn with_prewarmed(id: String, pool: Pool) -> Self {
        let slot = Self::with_id(id);
        slot.lock().prewarmed = Some(Arc::new(pool));
        slot
    }

    /// Returns the VM's name.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Returns the prewarmed VM, for a load.
    pub(crate) fn prewarmed(&self) -> Option<Arc<Pool>> {
        self.lock().prewarmed.clone()
    }

    /// Takes the slot for the VM that `make` returns. `act` names the act in errors.
    ///
    /// # Errors
    /// [`Error::NotNow`] unless the slot is empty, or the error of `make`, which leaves the slot empty.
    pub(crate) fn start<V: Into<Arc<Vm>>>(
        &self,
        act: &'static str,
        make: impl FnOnce() -> Result<V>,
    ) -> Result<Arc<Vm>> {
        self.claim(act)?;
        let claim = Claim(self);
        let vm = make()?.into();
        let mut inner = self.lock();
        inner.stage = Stage::Taken(Arc::clone(&vm));
        let closed = inner.closed;
        // The VM contains the prewarmed one by now, or cannot use it any more.
        let prewarmed = inner.prewarmed.take();
        drop(inner);
        drop(claim);
        self.changed.notify_all();
        drop(prewarmed);
        if closed {
            vm.stop();
        }
        Ok(vm)
    }

    fn claim(&self, act: &'static str) -> Result<()> {
        let mut inner = self.lock();
        let state = match inner.stage {
            _ if inner.closed => BEING_ENDED,
            Stage::Taken(_) => "was started already",
            Stage::Starting => "is being started",
            Stage::Empty => {
                inner.stage = Stage::Starting;
                return Ok(());
            }
        };
        Err(Error::NotNow { act, state })
    }

    /// Says whether an error of [`Slot::start`] comes from a slot closed before.
    pub(crate) fn is_refusal_of_closed(&self, error: &Error) -> bool {
        self.lock().closed && matches!(error, Error::NotNow { state: BEING_ENDED, .. })
    }

    /// Returns the VM for `act`.
    ///
    /// # Errors
    /// [`Error::NotNow`] unless the slot is taken.
    pub(crate) fn vm(&self, act: &'static str) -> Result<Arc<Vm>> {
        self.peek().ok_or(Error::NotNow { act, state: "has not been started" })
    }

    /// Returns the VM of a taken slot.
    pub(crate) fn peek(&self) -> Option<Arc<Vm>> {
        match &self.lock().stage {
            Stage::Taken(vm) => Some(Arc::clone(vm)),
            Stage::Empty | Stage::Starting => None,
        }
    }

    /// Whether no VM was started, and none is being started.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self.lock().stage, Stage::Empty)
    }

    /// Waits for a VM. Returns `None` if the slot is closed first.
    pub(crate) fn wait(&self) -> Option<Arc<Vm>> {
        let mut inner = self.lock();
        loop {
            match &inner.stage {
                Stage::Taken(vm) => return Some(Arc::clone(vm)),
                _ if inner.closed => return None,
                _ => inner = self.changed.wait(inner).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Refuses later starts, and ends the VM that is being started once it runs. Returns false if none is
    /// being started; then nothing changes.
    pub(crate) fn cancel_start(&self) -> bool {
        let mut inner = self.lock();
        let is_starting = matches!(inner.stage, Stage::Starting);
        inner.closed |= is_starting;
        drop(inner);
        self.changed.notify_all();
        is_starting
    }

    /// Ends the VM and refuses later starts.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
        if let Some(vm) = self.peek() {
            vm.stop();
        }
    }

    // No code panics while it holds the lock, so a poisoned lock guards consistent data.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Empties the slot if the creation of the VM failed or panicked.
struct Claim<'a>(&'a Slot);

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut inner = self.0.lock();
        if matches!(inner.stage, Stage::Starting) {
            inner.stage = Stage::Empty;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failing() -> Result<Vm> {
        Err(Error::Crashed("made to fail".into()))
    }

    #[test]
    fn failed_start_leaves_the_slot_empty() {
        let slot = Slot::new();
        for _ in 0..2 {
            assert!(matches!(slot.start("boot", failing), Err(Error::Crashed(_))));
        }
        assert_eq!(slot.vm("pause").unwrap_err().to_string(), "cannot pause: the VM has not been started");
    }

    #[test]
    fn panicking_start_leaves_the_slot_empty() {
        let slot = Slot::new();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            slot.start("boot", || -> Result<Vm> { panic!("made to panic") })
        }));
        assert!(panicked.is_err());
        assert!(matches!(slot.start("boot", failing), Err(Error::Crashed(_))));
    }

    #[test]
    fn start_during_a_start_is_refused() {
        let slot = Slot::new();
        let outer = slot.start("load", || {
            let inner = slot.start("boot", failing).unwrap_err();
            assert_eq!(inner.to_string(), "cannot boot: the VM is being started");
            failing()
        });
        assert!(matches!(outer, Err(Error::Crashed(_))));
    }

    #[test]
    fn cancelled_start_leaves_the_slot_closed() {
        let slot = Slot::new();
        assert!(!slot.cancel_start(), "none is under way");
        let started = slot.start("load", || {
            assert!(slot.cancel_start());
            failing()
        });
        assert!(matches!(started, Err(Error::Crashed(_))));
        assert!(slot.wait().is_none());
        let again = slot.start("boot", failing).unwrap_err();
        assert_eq!(again.to_string(), "cannot boot: the VM is being ended");
    }

    #[test]
    fn closed_slot_refuses_starts_and_wakes_waiters() {
        let slot = Slot::new();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| slot.wait().is_none());
            slot.close();
            assert!(waiting.join().unwrap());
        });
        assert_eq!(
            slot.start("boot", failing).unwrap_err().to_string(),
            "cannot boot: the VM is being ended"
        );
    }
}
