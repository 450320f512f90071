//! Times the steps of a boot or restore. A mark costs a read of a thread-local variable unless a recording
//! runs. The few phases of a restore are timed always: each costs a read of the clock, some 30 ns.

use std::cell::RefCell;
use std::time::{Duration, Instant};

thread_local! {
    static RECORD: RefCell<Option<Vec<(&'static str, Instant)>>> = const { RefCell::new(None) };
}

/// Marks the end of a step, on this thread.
pub(crate) fn step_done(name: &'static str) {
    RECORD.with_borrow_mut(|record| {
        if let Some(record) = record {
            record.push((name, Instant::now()));
        }
    });
}

/// Runs `work` and returns the duration of each of its steps on this thread, in order. A name may come more
/// than once.
#[cfg(any(feature = "internal", test))]
pub fn record<T>(work: impl FnOnce() -> T) -> (T, Vec<(&'static str, Duration)>) {
    RECORD.set(Some(Vec::with_capacity(32)));
    let mut last = Instant::now();
    let done = work();
    let marks = RECORD.take().unwrap_or_default();
    let steps = marks.into_iter().map(|(name, at)| {
        let took = at - last;
        last = at;
        (name, took)
    });
    (done, steps.collect())
}

/// Durations of the phases of a restore. Opening the snapshot, which VMs may share, is none of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestorePhases {
    /// Checks, overrides, and files for the VM: layers, memory of packed snapshots.
    pub prepare: Duration,
    /// An empty VM over mapped memory, new or from a pool.
    pub machine: Duration,
    /// The devices, with their files and sockets.
    pub devices: Duration,
    /// The state of vCPUs, interrupt controllers and devices.
    pub state: Duration,
    /// Memory of a working set, mapped before the guest runs. Zero for a VM whose first vCPU runs on a lent
    /// thread, which maps it later.
    pub ahead: Duration,
    /// The start of devices and vCPUs. Zero for a VM that was restored paused.
    pub resume: Duration,
}

impl RestorePhases {
    /// Returns the duration of the whole restore.
    #[must_use]
    pub fn total(&self) -> Duration {
        let Self { prepare, machine, devices, state, ahead, resume } = *self;
        prepare + machine + devices + state + ahead + resume
    }
}

/// Times one phase after another.
#[derive(Debug)]
pub(crate) struct PhaseClock(Instant);

impl PhaseClock {
    /// Begins the first phase.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Ends a phase and begins the next. Returns the phase's duration.
    pub fn phase_done(&mut self) -> Duration {
        let now = Instant::now();
        now - std::mem::replace(&mut self.0, now)
    }
}
