//! VMs made ahead of time, before anyone knows what will run in them: a restore into one is a mapping and the state's calls.
//!
//! ```text
//!   Pool::new ──> a thread makes shells ──> [shell][shell][shell] ──take──> a restore, if the shape is right
//!                        ^                                         │
//!                        └──────────── one is missing ─────────────┘
//! ```
//!
//! Whoever restores a snapshot will restore it again: the next shells are given its vCPUs' state in advance, which is most of the
//! state's calls. A restore of another snapshot puts its own in its place.

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

/// An empty VM, nothing mapped over its memory yet.
fn make(shape: VmShape) -> Result<Shell> {
    Shell::new(GuestRam::reserve(shape.memory_bytes)?, shape, FirstVcpu::OwnThread)
}

/// For so long after a restore nobody makes the next VM: that would have the kernel's locks, and a CPU, that the restored one wants.
const CALM: Duration = Duration::from_millis(2);

/// Empty VMs of one shape. Dropped, those that nobody took are closed.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    /// Who makes those that are missing, unless nobody does.
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    shape: VmShape,
    /// How many there are to be again when one was taken.
    size: usize,
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    shells: VecDeque<Ready>,
    /// What was restored last, and when.
    last: Option<(Arc<MachineState>, Instant)>,
    over: bool,
    /// The host refused one. Whoever waits is told; the next that is taken is a reason to try again.
    refused: Option<Error>,
}

/// An empty VM.
#[derive(Debug)]
struct Ready {
    shell: Shell,
    /// What its vCPUs have.
    prepared: Option<Arc<MachineState>>,
}

impl Ready {
    /// Makes one, for a state that is likely to be restored.
    fn make(shape: VmShape, likely: Option<&Arc<MachineState>>) -> Result<Self> {
        let mut shell = make(shape)?;
        let Some(state) = likely else { return Ok(Self { shell, prepared: None }) };
        match shell.prepare(&state.vcpus) {
            Ok(()) => Ok(Self { shell, prepared: Some(Arc::clone(state)) }),
            // Its restore will say why.
            Err(_) => Ok(Self { shell: make(shape)?, prepared: None }),
        }
    }
}

impl Pool {
    /// Begins to keep `size` VMs of a shape ready, one at least. The first is there when this returns.
    ///
    /// # Errors
    /// The host refuses a VM or a thread.
    pub fn new(shape: VmShape, size: usize) -> Result<Self> {
        let inner = Inner { shells: [Ready::make(shape, None)?].into(), ..Inner::default() };
        let (inner, changed) = (Mutex::new(inner), Condvar::new());
        let shared = Arc::new(Shared { shape, size: size.max(1), inner, changed });
        let refill = Arc::clone(&shared);
        let thread = threads::spawn("pool", move || refill.refill())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// So many VMs of a shape, ready now. No others are made when they are taken.
    ///
    /// # Errors
    /// The host refuses a VM.
    pub fn filled(shape: VmShape, count: usize) -> Result<Self> {
        let shells = (0..count).map(|_| Ready::make(shape, None)).collect::<Result<_>>()?;
        let inner = Mutex::new(Inner { shells, ..Inner::default() });
        let shared = Arc::new(Shared { shape, size: 0, inner, changed: Condvar::new() });
        Ok(Self { shared, thread: None })
    }

    /// The shape of its VMs.
    #[must_use]
    pub fn shape(&self) -> VmShape {
        self.shared.shape
    }

    /// How many are ready.
    #[must_use]
    pub fn ready(&self) -> usize {
        lock(&self.shared.inner).shells.len()
    }

    /// Waits until all are ready that are made.
    ///
    /// # Errors
    /// The host refuses one.
    pub fn wait_ready(&self) -> Result<()> {
        let Shared { size, inner, changed, .. } = &*self.shared;
        let waits = |inner: &mut Inner| inner.shells.len() < *size && inner.refused.is_none();
        let mut inner = wait_while(changed, lock(inner), waits);
        let refused = inner.refused.take();
        // Whoever waits next has a reason to, for it is tried again.
        changed.notify_all();
        refused.map_or(Ok(()), Err)
    }

    /// Takes one of this shape, if there is one, to restore `state` to. The next is made once the [`Refill`]
    /// is dropped: to wake the thread that makes it takes time, which the restore does not have.
    pub(crate) fn take(&self, shape: VmShape, state: &Arc<MachineState>) -> Option<(Shell, Refill)> {
        if shape != self.shared.shape {
            return None;
        }
        let mut inner = lock(&self.shared.inner);
        inner.refused = None;
        let is_for =
            |ready: &Ready| ready.prepared.as_ref().is_some_and(|prepared| Arc::ptr_eq(prepared, state));
        let at = inner.shells.iter().position(is_for).unwrap_or(0);
        let mut ready = inner.shells.remove(at)?;
        inner.last = Some((Arc::clone(state), Instant::now()));
        ready.shell.is_prepared = is_for(&ready);
        Some((ready.shell, Refill(Arc::clone(&self.shared))))
    }
}

/// Has the VM replaced that was taken, when it is dropped.
#[derive(Debug)]
pub(crate) struct Refill(Arc<Shared>);

impl Drop for Refill {
    fn drop(&mut self) {
        self.0.changed.notify_all();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        lock(&self.shared.inner).over = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it does not panic, and if it did there would be no more VMs
        }
    }
}

impl Shared {
    fn refill(&self) {
        loop {
            let idle = |inner: &mut Inner| {
                !inner.over && (inner.shells.len() >= self.size || inner.refused.is_some())
            };
            let inner = wait_while(&self.changed, lock(&self.inner), idle);
            if inner.over {
                return;
            }
            let last = inner.last.clone();
            drop(inner);
            if let Some((_, at)) = &last {
                thread::sleep(CALM.saturating_sub(at.elapsed()));
            }
            let made = Ready::make(self.shape, last.as_ref().map(|(state, _)| state));
            let mut inner = lock(&self.inner);
            match made {
                Ok(ready) => inner.shells.push_back(ready),
                Err(error) => {
                    log::warn!("a VM for the pool: {}", crate::error::report(&error));
                    inner.refused = Some(error);
                }
            }
            self.changed.notify_all();
        }
    }
}
