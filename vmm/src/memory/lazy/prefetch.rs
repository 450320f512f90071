//! Reading memory ahead: pages that a guest is likely to touch, in the order in which it did before, beside the guest and off the
//! path of its faults.
//!
//! A thread of its own walks through them. It shares no lock with whoever answers faults: what is there already it skips, what two
//! fetch at the same time is there once, and nobody waits for the other. Memory that is a file's is only mapped in ([`crate::memory::prefault::populate`]):
//! the kernel reads what is not in its cache, as it would for a fault.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::error::{Result, report};
use crate::memory::PAGE;
use crate::threads;

/// Ranges of offsets: whole pages, no page in two.
pub type Runs = Arc<[Range<u64>]>;

/// Bytes read at once. Mapped in from the kernel's cache they take 20 us, for which a thread that begins, and so changes the
/// process's mappings, may have to wait.
const STEP: u64 = 256 << 10;

/// How far reading ahead is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// Pages that were to be read.
    pub pages: u64,
    /// Pages that have been, or were there.
    pub read: u64,
    /// Whether it is over: no more are read.
    pub is_over: bool,
}

/// The same while it goes on.
#[derive(Debug)]
pub struct Progress {
    /// Pages that are to be read.
    of: u64,
    read: AtomicU64,
    is_over: AtomicBool,
    stops: AtomicBool,
}

impl Progress {
    fn of(runs: &Runs) -> Arc<Self> {
        let of = runs.iter().map(|run| (run.end - run.start) / PAGE).sum();
        let (read, is_over, stops) = (AtomicU64::new(0), AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { of, read, is_over, stops })
    }

    /// How far it is now.
    #[must_use]
    pub fn now(&self) -> Reading {
        // In this order: what is over does not change.
        let is_over = self.is_over.load(Ordering::Acquire);
        Reading { pages: self.of, read: self.read.load(Ordering::Relaxed), is_over }
    }

    /// Has it end before the next step.
    pub fn stop(&self) {
        self.stops.store(true, Ordering::Relaxed);
    }
}

/// What is left of it, for the thread that does it.
pub(crate) struct Steps {
    runs: Runs,
    progress: Arc<Progress>,
}

impl Steps {
    /// Has `read` read range after range, none longer than [`STEP`], until it is to stop.
    ///
    /// # Errors
    /// The first of `read`.
    pub fn each(&self, mut read: impl FnMut(Range<u64>) -> Result<()>) -> Result<()> {
        let steps = self.runs.iter().flat_map(|run| {
            run.clone().step_by(STEP as usize).map(|start| start..(start + STEP).min(run.end))
        });
        for step in steps {
            if self.progress.stops.load(Ordering::Relaxed) {
                break;
            }
            let pages = (step.end - step.start) / PAGE;
            read(step)?;
            self.progress.read.fetch_add(pages, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Begins a thread that reads ahead as `work` does.
///
/// # Errors
/// The host gives no thread.
pub(crate) fn ahead(
    runs: &Runs,
    work: impl FnOnce(&Steps) -> Result<()> + Send + 'static,
) -> Result<Arc<Progress>> {
    let progress = Progress::of(runs);
    let steps = Steps { runs: Arc::clone(runs), progress: Arc::clone(&progress) };
    let work = move || {
        if let Err(error) = work(&steps) {
            // Who touches it finds out too, and then it matters.
            log::warn!("memory is not read ahead any more: {}", report(&error));
        }
        steps.progress.is_over.store(true, Ordering::Release);
    };
    threads::spawn("prefetch", work)?;
    Ok(progress)
}
