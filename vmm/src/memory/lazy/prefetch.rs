//! Reads memory ahead: pages that a guest will probably touch, in the order of an earlier restore, beside the
//! guest and off the path of its faults.
//!
//! A separate thread walks through them. It shares no lock with the threads that answer faults, and no thread
//! waits for another. It skips present pages; pages fetched twice at the same time are stored once. Memory of
//! a file is only mapped in ([`crate::memory::prefault::populate`]): the kernel reads what its cache lacks,
//! as for a fault.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::error::{Result, report};
use crate::memory::PAGE;
use crate::sandbox::ThreadKind;
use crate::threads;

/// Disjoint ranges of offsets, in whole pages.
pub type PageRanges = Arc<[Range<u64>]>;

/// Bytes read at once. Mapping them in from the page cache takes 20 us. A thread that starts, and so changes
/// the process's mappings, may have to wait for that.
const STEP: u64 = 256 << 10;

/// Progress of reading ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct Reading {
    /// Pages of the list.
    pub pages: u64,
    /// Pages read or found present.
    pub read: u64,
    /// Whether reading ahead has ended.
    pub is_over: bool,
}

/// The progress while it runs.
#[derive(Debug)]
pub struct PrefetchProgress {
    /// Pages of the list.
    of: u64,
    read: AtomicU64,
    is_over: AtomicBool,
    stops: AtomicBool,
}

impl PrefetchProgress {
    /// The progress before any page. A caller that reads the pages itself ends it by [`Self::finish`].
    pub(crate) fn of(runs: &PageRanges) -> Arc<Self> {
        let of = runs.iter().map(|run| (run.end - run.start) / PAGE).sum();
        let (read, is_over, stops) = (AtomicU64::new(0), AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { of, read, is_over, stops })
    }

    /// Notes that the caller has read so many pages, and reads no more.
    pub(crate) fn finish(&self, pages: u64) {
        self.read.store(pages, Ordering::Relaxed);
        self.is_over.store(true, Ordering::Release);
    }

    /// The present progress.
    #[must_use]
    pub fn now(&self) -> Reading {
        // Read first: once over, the counts do not change.
        let is_over = self.is_over.load(Ordering::Acquire);
        Reading { pages: self.of, read: self.read.load(Ordering::Relaxed), is_over }
    }

    /// Stops before the next step.
    pub fn stop(&self) {
        self.stops.store(true, Ordering::Relaxed);
    }
}

/// The steps, for the thread that runs them.
pub(crate) struct Steps {
    runs: PageRanges,
    progress: Arc<PrefetchProgress>,
}

impl Steps {
    /// Calls `read` for range after range, none longer than [`STEP`], until it is told to stop.
    ///
    /// # Errors
    /// The first error of `read`.
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

/// Starts a thread that reads ahead by `work`.
///
/// # Errors
/// The host gives no thread.
pub(crate) fn ahead(
    runs: &PageRanges,
    work: impl FnOnce(&Steps) -> Result<()> + Send + 'static,
) -> Result<Arc<PrefetchProgress>> {
    let progress = PrefetchProgress::of(runs);
    let steps = Steps { runs: Arc::clone(runs), progress: Arc::clone(&progress) };
    let work = move || {
        if let Err(error) = work(&steps) {
            // A fault that touches the memory meets the same error, and handles it.
            log::warn!("cannot read memory ahead any further: {}", report(&error));
        }
        steps.progress.is_over.store(true, Ordering::Release);
    };
    threads::spawn(ThreadKind::Pager, "prefetch", work)?;
    Ok(progress)
}
