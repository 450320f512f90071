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
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::machine::MachineState;
use crate::machine::shell::{FirstVcpu, Shell, VmShape};
use crate::memory::ram::GuestRam;
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
        let state = PoolState { shells: [PooledVm::make(shape, None)?].into(), ..PoolState::default() };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let shared = Arc::new(SharedPool { shape, size: size.max(1), state, changed });
        let refill = Arc::clone(&shared);
        let thread = threads::spawn("pool", move || refill.refill())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Makes a pool of `count` VMs of a shape, all ready, that is not refilled.
    ///
    /// # Errors
    /// Returns an error if the host refuses a VM.
    pub fn filled(shape: VmShape, count: usize) -> Result<Self> {
        let shells = (0..count).map(|_| PooledVm::make(shape, None)).collect::<Result<_>>()?;
        let state = Mutex::new(PoolState { shells, ..PoolState::default() });
        let shared = Arc::new(SharedPool { shape, size: 0, state, changed: Condvar::new() });
        Ok(Self { shared, thread: None })
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
        state.refused = None;
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
    fn refill(&self) {
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
            let made = PooledVm::make(self.shape, last.as_ref().map(|(machine, _)| machine));
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
