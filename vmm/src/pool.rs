//! VMs made ahead of time, before anyone knows what will run in them: a restore into one is a mapping and the state's calls.
//!
//! ```text
//!   Pool::new ──> a thread makes shells ──> [shell][shell][shell] ──take──> a restore, if the shape is right
//!                        ^                                         │
//!                        └───────────── one is missing ────────────┘
//! ```

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};

use crate::config::{IrqchipKind, VmConfig};
use crate::error::{Error, Result};
use crate::memory::ram::GuestRam;
use crate::shell::{FirstVcpu, Shell};
use crate::sync::{lock, wait_while};

/// What an empty VM has, which cannot be changed any more. Only a snapshot of this shape is ever restored into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Guest memory in bytes.
    pub memory_bytes: u64,
    /// vCPUs.
    pub vcpus: u8,
    /// Where the interrupt controllers are.
    pub irqchip: IrqchipKind,
}

impl Shape {
    /// That of a VM.
    #[must_use]
    pub fn of(config: &VmConfig) -> Self {
        Self { memory_bytes: config.memory_bytes(), vcpus: config.vcpus, irqchip: config.irqchip }
    }

    /// Makes an empty VM of this shape, nothing mapped over its memory yet.
    ///
    /// # Errors
    /// As [`Shell::new`].
    pub(crate) fn make(self) -> Result<Shell> {
        let ram = GuestRam::reserve(self.memory_bytes)?;
        Shell::new(ram, self.vcpus, self.irqchip, FirstVcpu::OwnThread)
    }
}

/// Empty VMs of one shape. Dropped, those that nobody took are closed.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    /// Who makes them.
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    shape: Shape,
    /// How many there are to be.
    size: usize,
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    shells: VecDeque<Shell>,
    over: bool,
    /// The host refused one. Whoever waits is told; the next that is taken is a reason to try again.
    refused: Option<Error>,
}

impl Pool {
    /// Begins to keep `size` VMs of a shape ready, one at least. The first is there when this returns.
    ///
    /// # Errors
    /// The host refuses a VM or a thread.
    pub fn new(shape: Shape, size: usize) -> Result<Self> {
        let inner = Inner { shells: [shape.make()?].into(), ..Inner::default() };
        let (inner, changed) = (Mutex::new(inner), Condvar::new());
        let shared = Arc::new(Shared { shape, size: size.max(1), inner, changed });
        let refill = Arc::clone(&shared);
        let thread = thread::Builder::new().name("volt-pool".to_owned()).spawn(move || refill.refill());
        let thread = thread.map_err(|source| Error::host("start the thread of a pool", source))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The shape of its VMs.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shared.shape
    }

    /// How many are ready.
    #[must_use]
    pub fn ready(&self) -> usize {
        lock(&self.shared.inner).shells.len()
    }

    /// Waits until all are ready.
    ///
    /// # Errors
    /// The host refuses one.
    pub fn wait_ready(&self) -> Result<()> {
        let Shared { size, inner, changed, .. } = &*self.shared;
        let waits = |inner: &mut Inner| inner.shells.len() < *size && inner.refused.is_none();
        let mut inner = wait_while(changed, lock(inner), waits);
        inner.refused.take().map_or(Ok(()), Err)
    }

    /// One of this shape, if there is one.
    pub(crate) fn take(&self, shape: Shape) -> Option<Shell> {
        if shape != self.shared.shape {
            return None;
        }
        let mut inner = lock(&self.shared.inner);
        inner.refused = None;
        let shell = inner.shells.pop_front();
        self.shared.changed.notify_all();
        shell
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
            if wait_while(&self.changed, lock(&self.inner), idle).over {
                return;
            }
            let made = self.shape.make();
            let mut inner = lock(&self.inner);
            match made {
                Ok(shell) => inner.shells.push_back(shell),
                Err(error) => {
                    log::warn!("a VM for the pool: {}", crate::error::report(&error));
                    inner.refused = Some(error);
                }
            }
            self.changed.notify_all();
        }
    }
}
