//! Pools of empty VMs. A restore into a pooled VM only maps memory and sets the state.
//!
//! ```text
//!   Pool::new ──> a thread makes shells ──> [shell][shell][shell] ──take──> a restore, if the shape is right
//!                        ^                                         │
//!                        └──────────── one is missing ─────────────┘
//! ```
//!
//! The same snapshot is likely to be restored again. The pool therefore sets the vCPU state of the last
//! restored snapshot in new shells, which saves most of the calls of the next restore. A restore of another
//! snapshot overwrites that state.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::kvm::host::KeptFeatures;
use crate::machine::MachineState;
use crate::machine::shell::{FirstVcpu, Shell, VmShape};
use crate::memory::ram::GuestRam;
use crate::sandbox::ThreadKind;
use crate::sync::{lock, wait_while};
use crate::threads;

/// Makes an empty VM without mapped memory.
fn make(shape: VmShape) -> Result<Shell> {
    Shell::new(GuestRam::reserve(shape.memory_bytes)?, shape, FirstVcpu::OwnThread)
}

/// The time between a restore and the making of the next VM. Making one takes kernel locks and a CPU that the
/// restored VM needs.
const REFILL_DELAY: Duration = Duration::from_millis(2);

/// Empty VMs of one shape. Dropping the pool closes the VMs that were not taken.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<SharedPool>,
    /// The thread that makes missing VMs; none if the pool is not refilled.
    thread: Option<JoinHandle<()>>,
    /// Saves each restore the look whether the host has changed. Absent if KVM refuses to tell its features.
    _features: Option<Arc<KeptFeatures>>,
}

/// The part of a pool that its thread shares.
#[derive(Debug)]
struct SharedPool {
    shape: VmShape,
    /// Number of VMs that the thread keeps ready.
    size: usize,
    state: Mutex<PoolState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct PoolState {
    shells: VecDeque<PooledVm>,
    /// The state that was restored last, and the time.
    last: Option<(Arc<MachineState>, Instant)>,
    is_dropped: bool,
    /// The host's refusal of a VM. [`Pool::wait_ready`] reports it, and the next take tries again.
    refused: Option<Error>,
}

/// An empty VM that waits for a restore.
#[derive(Debug)]
struct PooledVm {
    shell: Shell,
    /// The state that its vCPUs were prepared with.
    prepared: Option<Arc<MachineState>>,
}

impl PooledVm {
    /// Makes a VM, and prepares its vCPUs with a state that is likely to be restored.
    fn make(shape: VmShape, likely: Option<&Arc<MachineState>>) -> Result<Self> {
        let mut shell = make(shape)?;
        let Some(state) = likely else { return Ok(Self { shell, prepared: None }) };
        match shell.prepare(&state.vcpus) {
            Ok(()) => Ok(Self { shell, prepared: Some(Arc::clone(state)) }),
            // The restore of this state reports the cause.
            Err(_) => Ok(Self { shell: make(shape)?, prepared: None }),
        }
    }
}

impl Pool {
    /// Makes a pool that keeps `size` VMs of a shape ready, at least one. The first VM is ready when this
    /// returns.
    ///
    /// # Errors
    /// Returns an error if the host refuses a VM or a thread.
    pub fn new(shape: VmShape, size: usize) -> Result<Self> {
        let features = KeptFeatures::keep().ok();
        let state = PoolState { shells: [PooledVm::make(shape, None)?].into(), ..PoolState::default() };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let shared = Arc::new(SharedPool { shape, size: size.max(1), state, changed });
        let refill = Arc::clone(&shared);
        let thread = threads::spawn(ThreadKind::Worker, "pool", move || refill.refill(PooledVm::make))?;
        Ok(Self { shared, thread: Some(thread), _features: features })
    }

    /// Makes a pool of `count` VMs of a shape, all ready, that is not refilled.
    ///
    /// # Errors
    /// Returns an error if the host refuses a VM.
    pub fn filled(shape: VmShape, count: usize) -> Result<Self> {
        let features = KeptFeatures::keep().ok();
        let shells = (0..count).map(|_| PooledVm::make(shape, None)).collect::<Result<_>>()?;
        let state = Mutex::new(PoolState { shells, ..PoolState::default() });
        let shared = Arc::new(SharedPool { shape, size: 0, state, changed: Condvar::new() });
        Ok(Self { shared, thread: None, _features: features })
    }

    /// Returns the shape of the VMs.
    #[must_use]
    pub fn shape(&self) -> VmShape {
        self.shared.shape
    }

    /// Returns the number of ready VMs.
    #[must_use]
    pub fn ready(&self) -> usize {
        lock(&self.shared.state).shells.len()
    }

    /// Waits until the pool is full.
    ///
    /// # Errors
    /// Returns an error if the host refuses a VM.
    pub fn wait_ready(&self) -> Result<()> {
        let SharedPool { size, state, changed, .. } = &*self.shared;
        let waits = |state: &mut PoolState| state.shells.len() < *size && state.refused.is_none();
        let mut state = wait_while(changed, lock(state), waits);
        let refused = state.refused.take();
        // The thread tries again.
        changed.notify_all();
        refused.map_or(Ok(()), Err)
    }

    /// Takes a VM of this shape to restore `machine` into, if one is ready. Dropping the [`Refill`] makes the
    /// next VM. The caller drops it after the restore, because waking the thread takes time.
    pub(crate) fn take(&self, shape: VmShape, machine: &Arc<MachineState>) -> Option<(Shell, Refill)> {
        if shape != self.shared.shape {
            return None;
        }
        let mut state = lock(&self.shared.state);
        if state.refused.take().is_some() {
            // An empty pool returns no Refill that would wake the thread.
            self.shared.changed.notify_all();
        }
        let is_for =
            |vm: &PooledVm| vm.prepared.as_ref().is_some_and(|prepared| Arc::ptr_eq(prepared, machine));
        let at = state.shells.iter().position(is_for).unwrap_or(0);
        let mut vm = state.shells.remove(at)?;
        state.last = Some((Arc::clone(machine), Instant::now()));
        vm.shell.is_prepared = is_for(&vm);
        Some((vm.shell, Refill(Arc::clone(&self.shared))))
    }
}

/// Replaces the VM that was taken, when dropped.
#[derive(Debug)]
pub(crate) struct Refill(Arc<SharedPool>);

impl Drop for Refill {
    fn drop(&mut self) {
        self.0.changed.notify_all();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        lock(&self.shared.state).is_dropped = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread would have no further effect.
            let _ = thread.join();
        }
    }
}

impl SharedPool {
    /// Makes missing VMs by `make` until the pool is dropped.
    fn refill(&self, make: impl Fn(VmShape, Option<&Arc<MachineState>>) -> Result<PooledVm>) {
        // Without this thread a wait for a full pool would not end.
        let _refusal = OnPanic(self);
        loop {
            let idle = |state: &mut PoolState| {
                !state.is_dropped && (state.shells.len() >= self.size || state.refused.is_some())
            };
            let state = wait_while(&self.changed, lock(&self.state), idle);
            if state.is_dropped {
                return;
            }
            let last = state.last.clone();
            drop(state);
            if let Some((_, at)) = &last {
                thread::sleep(REFILL_DELAY.saturating_sub(at.elapsed()));
            }
            let made = make(self.shape, last.as_ref().map(|(machine, _)| machine));
            let mut state = lock(&self.state);
            match made {
                Ok(vm) => state.shells.push_back(vm),
                Err(error) => {
                    log::warn!("cannot make a VM for the pool: {}", crate::error::report(&error));
                    state.refused = Some(error);
                }
            }
            self.changed.notify_all();
        }
    }
}

/// Reports a panic of the thread as a refusal.
struct OnPanic<'a>(&'a SharedPool);

impl Drop for OnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let why = io::Error::other("the thread that makes VMs panicked");
            lock(&self.0.state).refused = Some(Error::host("make a VM for the pool", why));
            self.0.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;
    use crate::config::IrqchipKind;

    const SHAPE: VmShape =
        VmShape { memory_bytes: 1 << 20, vcpus: 1, irqchip: IrqchipKind::Split, logs_writes: false };

    /// Makes an empty pool whose thread makes VMs by `make`.
    fn pool(make: impl Fn() -> Result<PooledVm> + Send + 'static) -> Pool {
        let (state, changed) = (Mutex::new(PoolState::default()), Condvar::new());
        let shared = Arc::new(SharedPool { shape: SHAPE, size: 1, state, changed });
        let refill = Arc::clone(&shared);
        let thread =
            threads::spawn(ThreadKind::Worker, "pool", move || refill.refill(|_, _| make())).unwrap();
        Pool { shared, thread: Some(thread), _features: None }
    }

    #[test]
    fn take_from_an_empty_pool_tries_again_after_a_refusal() {
        let (tried, tries): (Sender<()>, Receiver<()>) = channel();
        let pool = pool(move || {
            tried.send(()).unwrap();
            Err(Error::host("make a VM", io::Error::from_raw_os_error(24)))
        });
        let clock = r#"{"clock":0,"flags":0,"host_tsc":0,"realtime":0}"#;
        let machine = format!(r#"{{"vcpus":[],"clock":{clock},"devices":{{}}}}"#);
        let machine = Arc::new(serde_json::from_str(&machine).unwrap());
        let next_try = || tries.recv_timeout(Duration::from_secs(60)).expect("the pool tries");
        for _ in 0..3 {
            next_try();
            let is_refused = |state: &mut PoolState| state.refused.is_none();
            drop(wait_while(&pool.shared.changed, lock(&pool.shared.state), is_refused));
            assert!(pool.take(SHAPE, &machine).is_none());
        }
    }

    #[test]
    fn panic_of_the_refilling_thread_ends_a_wait() {
        let error = pool(|| panic!("in a test")).wait_ready().unwrap_err();
        assert!(crate::error::report(&error).contains("panicked"), "{error}");
    }
}
