//! The place of the one VM that a process runs: empty until a boot or a load, then taken for good.
//!
//! ```text
//! Empty --start--> Starting --ok--> Taken        close(): any stage; a VM in it is stopped, none can be started
//!   ^                 |
//!   +-----failed------+
//! ```

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use volt_vmm::{Error, Pool, Result, Vm};

/// What a VM is called that nobody has given a name, as Firecracker has it.
const ANONYMOUS: &str = "anonymous-instance";

/// See the module.
#[derive(Debug)]
pub(crate) struct Slot {
    /// Its VM's name.
    id: String,
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Debug)]
struct Inner {
    stage: Stage,
    closed: bool,
    /// A VM that was made ahead of time, until there is one that runs.
    prewarmed: Option<Arc<Pool>>,
}

/// The state of a VM that is not begun any more, for errors.
const BEING_ENDED: &str = "is being ended";

#[derive(Debug)]
enum Stage {
    Empty,
    Starting,
    Taken(Arc<Vm>),
}

impl Slot {
    /// An empty slot.
    pub(crate) fn new() -> Self {
        Self::named(ANONYMOUS.to_owned())
    }

    /// The same with a name for its VM.
    pub(crate) fn named(id: String) -> Self {
        let inner = Inner { stage: Stage::Empty, closed: false, prewarmed: None };
        Self { id, inner: Mutex::new(inner), changed: Condvar::new() }
    }

    /// An empty slot with a VM ready that was made ahead of time.
    pub(crate) fn prewarmed_with(pool: Pool) -> Self {
        let slot = Self::new();
        slot.lock().prewarmed = Some(Arc::new(pool));
        slot
    }

    /// Its VM's name.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// What was made ahead of time, for a load.
    pub(crate) fn prewarmed(&self) -> Option<Arc<Pool>> {
        self.lock().prewarmed.clone()
    }

    /// Puts in the VM that `make` makes. `act` names what is being done, for the error.
    ///
    /// # Errors
    /// [`Error::NotNow`] when there is a VM or one is being made, and whatever `make` says; the slot is empty again
    /// after that.
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
        // What was made ahead of time is part of the VM by now, or of no use any more.
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

    /// Whether an error of [`Slot::start`] only says that the slot was closed before.
    pub(crate) fn refuses_for_its_end(&self, error: &Error) -> bool {
        self.lock().closed && matches!(error, Error::NotNow { state: BEING_ENDED, .. })
    }

    /// The VM, for an act on it.
    ///
    /// # Errors
    /// [`Error::NotNow`] when there is none.
    pub(crate) fn vm(&self, act: &'static str) -> Result<Arc<Vm>> {
        self.peek().ok_or(Error::NotNow { act, state: "has not been started" })
    }

    /// The VM, if there is one.
    pub(crate) fn peek(&self) -> Option<Arc<Vm>> {
        match &self.lock().stage {
            Stage::Taken(vm) => Some(Arc::clone(vm)),
            Stage::Empty | Stage::Starting => None,
        }
    }

    /// Waits for a VM; `None` when the slot was closed first.
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

    /// Ends the VM, if there is one, and refuses any other.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
        if let Some(vm) = self.peek() {
            vm.stop();
        }
    }

    // Nothing panics while it holds the lock, so what a poisoned one guards is sound.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Empties the slot again if making the VM failed or panicked.
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
    fn a_failed_start_leaves_the_slot_empty() {
        let slot = Slot::new();
        for _ in 0..2 {
            assert!(matches!(slot.start("boot", failing), Err(Error::Crashed(_))));
        }
        assert_eq!(slot.vm("pause").unwrap_err().to_string(), "cannot pause: the VM has not been started");
    }

    #[test]
    fn a_panicking_start_leaves_the_slot_empty() {
        let slot = Slot::new();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            slot.start("boot", || -> Result<Vm> { panic!("made to panic") })
        }));
        assert!(panicked.is_err());
        assert!(matches!(slot.start("boot", failing), Err(Error::Crashed(_))));
    }

    #[test]
    fn one_start_at_a_time() {
        let slot = Slot::new();
        let outer = slot.start("load", || {
            let inner = slot.start("boot", failing).unwrap_err();
            assert_eq!(inner.to_string(), "cannot boot: the VM is being started");
            failing()
        });
        assert!(matches!(outer, Err(Error::Crashed(_))));
    }

    #[test]
    fn a_closed_slot_refuses_and_wakes_who_waits() {
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
