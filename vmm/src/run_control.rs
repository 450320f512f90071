//! Run control: starts, parks and ends the vCPU threads of a VM.
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
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::events::Events;
pub use crate::run_state::{Ending, RunState};
use crate::sync::{lock, wait_while};

/// The event after which a thread stops running its vCPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// [`Control::quit`], for the VM's own threads.
    Quit,
    /// The guest's end, for a lent thread.
    GuestEnds,
}

/// Interrupts `KVM_RUN` of one vCPU.
pub(crate) trait Kick: Debug + Send + Sync {
    /// Interrupts the vCPU, now or at its next entry.
    fn send(&self);

    /// Clears the effect of [`Kick::send`]. Called on the vCPU's thread.
    fn forget(&self);
}

/// The command to the vCPU threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Command {
    Park,
    /// Park for a moment within a run.
    StepOut,
    Run,
    Quit,
}

impl Command {
    /// Whether the guest runs, as its owner sees it.
    fn is_run(self) -> bool {
        matches!(self, Self::Run | Self::StepOut)
    }
}

/// Run control of a VM. Shared by the vCPU threads, the devices that can end a guest, and the VM.
#[derive(Debug)]
pub struct Control {
    /// Whether running vCPUs must leave the guest: `command != Run`, readable without the lock.
    must_exit: AtomicBool,
    /// Those who follow the VM.
    events: Arc<Events>,
    state: Mutex<ControlState>,
    changed: Condvar,
}

#[derive(Debug)]
struct ControlState {
    command: Command,
    end: Option<End>,
    /// Kicks of the vCPUs that are not parked.
    kicks: Vec<Arc<dyn Kick>>,
    /// Acts that run when the guest ends.
    at_end: AtEnd,
}

/// A guest's ending, or a description of its crash.
type Outcome = std::result::Result<Ending, String>;

/// The end of a guest.
enum End {
    Known(Outcome),
    /// Its examination, for the thread that waits for the end: the vCPU's own may not make all calls for it.
    /// Absent once that thread has begun.
    Unknown(Option<Box<dyn FnOnce() -> Outcome + Send>>),
}

impl Debug for End {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Known(outcome) => outcome.fmt(f),
            Self::Unknown(_) => f.write_str("Unknown"),
        }
    }
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
        let state = ControlState { command: Command::Park, end: None, kicks, at_end };
        Arc::new(Self {
            must_exit: AtomicBool::new(true),
            events: Arc::default(),
            state: Mutex::new(state),
            changed: Condvar::new(),
        })
    }

    /// Those who follow the VM.
    pub(crate) fn events(&self) -> &Arc<Events> {
        &self.events
    }

    /// Returns the state of the VM.
    pub fn state(&self) -> RunState {
        let state = lock(&self.state);
        match (&state.end, state.command) {
            (Some(_), _) => RunState::Ended,
            (None, Command::Run | Command::StepOut) => RunState::Running,
            (None, _) => RunState::Paused,
        }
    }

    /// Starts all vCPUs, unless the guest has ended.
    pub(crate) fn start(&self) {
        let mut state = lock(&self.state);
        if state.end.is_none() {
            self.command(&mut state, Command::Run);
        }
    }

    /// Parks all vCPUs, and waits until they are parked.
    pub(crate) fn park(&self) {
        let mut state = lock(&self.state);
        if state.command.is_run() {
            self.command(&mut state, Command::Park);
        }
        drop(wait_while(&self.changed, state, |state| !state.kicks.is_empty()));
    }

    /// Runs `act` while all vCPUs of a running guest are parked for a moment. Does nothing if the guest does
    /// not run, or if another thread parks it meanwhile. Devices go on. `act` must not use the run control.
    pub(crate) fn between_turns(&self, act: impl FnOnce()) {
        let mut state = lock(&self.state);
        if state.command != Command::Run {
            return;
        }
        self.command(&mut state, Command::StepOut);
        let steps_out =
            |state: &mut ControlState| state.command == Command::StepOut && !state.kicks.is_empty();
        let mut state = wait_while(&self.changed, state, steps_out);
        if state.command == Command::StepOut {
            act();
            self.command(&mut state, Command::Run);
        }
    }

    /// Ends the guest. Only the first ending counts. Does not wait for the vCPUs, because devices call this
    /// on a vCPU's thread.
    pub(crate) fn end(&self, how: Outcome) {
        self.end_as(End::Known(how));
    }

    /// Ends the guest. `examine` tells how, once its vCPUs are parked.
    pub(crate) fn end_examined(&self, examine: impl FnOnce() -> Outcome + Send + 'static) {
        self.end_as(End::Unknown(Some(Box::new(examine))));
    }

    fn end_as(&self, end: End) {
        let mut state = lock(&self.state);
        state.end.get_or_insert(end);
        if state.command.is_run() {
            self.command(&mut state, Command::Park);
        }
        self.changed.notify_all();
        Self::run_at_end(state);
    }

    fn run_at_end(mut state: MutexGuard<'_, ControlState>) {
        let at_end = std::mem::take(&mut state.at_end.0);
        drop(state);
        at_end.into_iter().for_each(|act| act());
    }

    /// Runs `act` when the guest ends, on the thread that ends it and before its vCPUs are parked; at once if
    /// the guest has ended.
    pub(crate) fn at_end(&self, act: impl FnOnce() + Send + 'static) {
        let mut state = lock(&self.state);
        state.at_end.0.push(Box::new(act));
        if state.end.is_some() {
            Self::run_at_end(state);
        }
    }

    /// Waits at most `patience` until all vCPUs are parked. Returns whether they are.
    pub(crate) fn wait_parked(&self, patience: Duration) -> bool {
        let state = lock(&self.state);
        let wait = self.changed.wait_timeout_while(state, patience, |state| !state.kicks.is_empty());
        wait.unwrap_or_else(PoisonError::into_inner).0.kicks.is_empty()
    }

    /// Tells the threads to return. Their owner joins them.
    pub(crate) fn quit(&self) {
        let mut state = lock(&self.state);
        state.end.get_or_insert(End::Known(Ok(Ending::Stopped)));
        self.command(&mut state, Command::Quit);
        Self::run_at_end(state);
    }

    /// Waits until the guest has ended and its vCPUs are parked.
    ///
    /// # Errors
    /// [`Error::Crashed`] if the guest crashed.
    pub(crate) fn wait_end(&self) -> Result<Ending> {
        let is_on = |state: &mut ControlState| {
            matches!(state.end, None | Some(End::Unknown(None))) || !state.kicks.is_empty()
        };
        let mut state = wait_while(&self.changed, lock(&self.state), is_on);
        let examine = match &mut state.end {
            Some(End::Known(outcome)) => return outcome.clone().map_err(Error::Crashed),
            Some(End::Unknown(examine)) => examine.take(),
            None => None,
        };
        // Without the lock, since it reads memory, perhaps of a file system that does not answer.
        drop(state);
        // A panic must not leave other threads waiting.
        let outcome = examine.map_or(Ok(Ending::Stopped), |examine| {
            catch_unwind(AssertUnwindSafe(examine))
                .unwrap_or_else(|_| Err("its examination panicked".to_owned()))
        });
        lock(&self.state).end = Some(End::Known(outcome.clone()));
        self.changed.notify_all();
        outcome.map_err(Error::Crashed)
    }

    /// Waits until the guest has ended. Its vCPUs may still run.
    pub(crate) fn wait_ended(&self) {
        drop(wait_while(&self.changed, lock(&self.state), |state| state.end.is_none()));
    }

    /// Waits at most `timeout` until the guest has ended and its vCPUs are parked. Returns whether both hold.
    pub(crate) fn wait_end_for(&self, timeout: Duration) -> bool {
        let is_on = |state: &mut ControlState| state.end.is_none() || !state.kicks.is_empty();
        let wait = self.changed.wait_timeout_while(lock(&self.state), timeout, is_on);
        !wait.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Whether running vCPUs must leave the guest. Takes no lock.
    pub(crate) fn must_exit(&self) -> bool {
        self.must_exit.load(Ordering::Relaxed)
    }

    /// Waits for the next turn of a vCPU's thread. Returns false if the thread must return for good.
    pub(crate) fn wait_for_turn(&self, kick: &Arc<dyn Kick>, until: Until) -> bool {
        let over = |state: &ControlState| {
            state.command == Command::Quit || until == Until::GuestEnds && state.end.is_some()
        };
        let waits = |state: &mut ControlState| {
            matches!(state.command, Command::Park | Command::StepOut) && !over(state)
        };
        let mut state = wait_while(&self.changed, lock(&self.state), waits);
        if over(&state) {
            return false;
        }
        // Under the lock, so no kick is lost: an earlier kick has changed `command`, and a later kick stays
        // pending.
        kick.forget();
        state.kicks.push(Arc::clone(kick));
        true
    }

    /// Marks a vCPU as parked. Called by its thread.
    pub(crate) fn parked(&self, kick: &Arc<dyn Kick>) {
        lock(&self.state).kicks.retain(|other| !Arc::ptr_eq(other, kick));
        self.changed.notify_all();
    }

    fn command(&self, state: &mut ControlState, command: Command) {
        state.command = command;
        self.must_exit.store(command != Command::Run, Ordering::Relaxed);
        if command != Command::Run {
            state.kicks.iter().for_each(|kick| kick.send());
        }
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::thread;

    use super::*;

    /// A vCPU that leaves the guest when it must, without a signal.
    #[derive(Debug)]
    struct NoSignal;

    impl Kick for NoSignal {
        fn send(&self) {}

        fn forget(&self) {}
    }

    /// Takes turns of a vCPU that is in the guest until it must leave. Counts the turns that have begun.
    fn take_turns(control: &Control, turns: &AtomicU32) {
        let kick: Arc<dyn Kick> = Arc::new(NoSignal);
        while control.wait_for_turn(&kick, Until::Quit) {
            turns.fetch_add(1, Ordering::SeqCst);
            while !control.must_exit() {
                thread::yield_now();
            }
            control.parked(&kick);
        }
    }

    #[test]
    fn running_vcpus_are_parked_for_an_act_and_paused_ones_stay_so() {
        let (control, turns) = (Control::new(), AtomicU32::new(0));
        let count = || turns.load(Ordering::SeqCst);
        let wait_for = |turn| {
            while count() < turn {
                thread::yield_now();
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| take_turns(&control, &turns));
            control.between_turns(|| panic!("the guest does not run"));
            control.start();
            wait_for(1);
            control.between_turns(|| assert_eq!(count(), 1));
            assert_eq!(control.state(), RunState::Running);
            wait_for(2);
            control.park();
            control.between_turns(|| panic!("the guest does not run"));
            assert_eq!((control.state(), count()), (RunState::Paused, 2));
            control.quit();
            control.between_turns(|| panic!("the guest has ended"));
        });
    }

    #[test]
    fn pause_during_a_step_out_lasts() {
        for _ in 0..100 {
            let (control, turns) = (Control::new(), AtomicU32::new(0));
            thread::scope(|scope| {
                scope.spawn(|| take_turns(&control, &turns));
                control.start();
                let stepping = scope.spawn(|| (0..20).for_each(|_| control.between_turns(|| {})));
                control.park();
                stepping.join().unwrap();
                assert_eq!(control.state(), RunState::Paused);
                control.quit();
            });
        }
    }
}
