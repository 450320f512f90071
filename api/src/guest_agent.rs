//! Quiet captures of this process's VM, and the wake of its guest after a restore from one.
//!
//! ```text
//!            capture: freeze ──> Frozen ── thaw ──> Runs
//!   restore, rewind: Asleep ── wake, thaw ──> Runs
//! ```
//!
//! A capture, up to the moment when its VM goes on, or a rewind and a wake wait for each other, so no
//! snapshot has a guest that is half awake. A thaw or wake that fails is tried again in the background until
//! the VM ends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use volt_vmm::{Error, Result, RewindStats, RunState, Vm};

use crate::agent::control::{self, Awake};
use crate::process::guest_note::{self, GuestNote, Workload};
use crate::process::home;
use crate::threads;

/// Time between two attempts to thaw or wake.
const PAUSE: Duration = Duration::from_secs(1);

/// Whether a capture, a rewind or a wake is at work, and the news of its end.
static AT_WORK: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

/// Keeps other captures, rewinds and wakes out. Unlike a guard of a mutex, another thread may drop it.
struct Alone(());

fn at_work() -> MutexGuard<'static, bool> {
    AT_WORK.0.lock().unwrap_or_else(PoisonError::into_inner)
}

fn alone() -> Alone {
    let free = AT_WORK.1.wait_while(at_work(), |at_work| *at_work);
    *free.unwrap_or_else(PoisonError::into_inner) = true;
    Alone(())
}

impl Drop for Alone {
    fn drop(&mut self) {
        *at_work() = false;
        AT_WORK.1.notify_one();
    }
}

/// The woken guest, until its thaw.
static AWAKE: Mutex<Awake> = Mutex::new(Awake { late: Duration::ZERO, connection: None });

/// Keeps other captures out, also after the guest goes on. Otherwise a second one would freeze the workload,
/// and then wait until the first one is written.
static CAPTURE: Mutex<()> = Mutex::new(());

fn one_capture() -> MutexGuard<'static, ()> {
    CAPTURE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Thaws the workload after a capture, once.
pub(crate) type Thaw = Arc<dyn Fn() + Send + Sync>;

/// Captures a VM by `act`, which gets the note for the capture. With `quiet`, the workload is frozen for it,
/// and thawed once `act` calls the function that it gets, at the latest after `act`. A wake may follow then.
///
/// # Errors
/// The agent does not answer, a hook fails, or a process does not freeze; the workload then runs. Or the
/// error of `act`.
pub(crate) fn capture<T>(
    vm: &Arc<Vm>,
    quiet: bool,
    act: impl FnOnce(GuestNote, &Thaw) -> Result<T>,
) -> Result<T> {
    let _one = one_capture();
    let alone = alone();
    let thaw: Thaw = if quiet { frozen(vm, alone)? } else { kept_until_called(alone) };
    // Also after a panic.
    let _thaws = AtEnd(&thaw);
    act(GuestNote::of_this_vm(quiet), &thaw)
}

/// Captures a VM that runs no command yet by `act`, as [`capture`] does, but without hooks. The workload
/// stays frozen, also after an error, until [`wake_before_all`].
///
/// # Errors
/// As [`capture`].
pub(crate) fn capture_before_all<T>(
    vm: &Arc<Vm>,
    act: impl FnOnce(GuestNote, &Thaw) -> Result<T>,
) -> Result<T> {
    let _one = one_capture();
    let let_others = kept_until_called(alone());
    // Also after a panic.
    let _lets_others = AtEnd(&let_others);
    begin_to_freeze(vm)?;
    control::quiesce(vm, false)?;
    act(GuestNote { quiet: true, main: None }, &let_others)
}

/// Wakes and thaws a guest that runs no command yet, without hooks.
///
/// # Errors
/// The agent did not wake the guest whole.
pub(crate) fn wake_before_all(vm: &Vm) -> Result<()> {
    {
        let _alone = alone();
        woken(vm, false)?;
    }
    finish(vm)
}

/// Returns a function that has nothing to thaw.
fn kept_until_called(alone: Alone) -> Thaw {
    let kept = Mutex::new(Some(alone));
    Arc::new(move || drop(kept.lock().unwrap_or_else(PoisonError::into_inner).take()))
}

/// Freezes the workload, after its hooks. Returns the function that thaws it.
fn frozen(vm: &Arc<Vm>, alone: Alone) -> Result<Thaw> {
    begin_to_freeze(vm)?;
    let (frozen, is_thawed) = (Arc::clone(vm), AtomicBool::new(false));
    let let_others = kept_until_called(alone);
    let thaw: Thaw = Arc::new(move || {
        if !is_thawed.swap(true, Ordering::SeqCst) {
            step(&frozen, false).unwrap_or_else(|error| try_again(&frozen, &error));
            let_others();
        }
    });
    control::quiesce(vm, true).inspect_err(|_| thaw())?;
    log::debug!("the workload is frozen");
    Ok(thaw)
}

/// Notes that the workload is frozen from now on.
///
/// # Errors
/// The guest does not run as a whole.
fn begin_to_freeze(vm: &Vm) -> Result<()> {
    if vm.state() != RunState::Running || guest_note::workload() != Workload::Runs {
        let problem =
            "the guest does not run as a whole; resume the VM, so that its agent can freeze the workload";
        return Err(control::refused("quiesce", problem));
    }
    guest_note::set_workload(Workload::Frozen);
    Ok(())
}

struct AtEnd<'t>(&'t Thaw);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Wakes the guest and thaws its workload, if it sleeps and runs. A paused one is woken when it is resumed.
/// With `is_required`, a guest that does not sleep is woken too, so that its agent answers.
///
/// # Errors
/// With `is_required`: the agent did not wake the guest whole, and its workload stays frozen. Otherwise a
/// warning says so.
pub(crate) fn wake(vm: &Arc<Vm>, is_required: bool) -> Result<()> {
    match prepare(vm, is_required).and_then(|()| finish(vm)) {
        Err(error) if !is_required => try_again(vm, &error),
        done => done?,
    }
    Ok(())
}

/// Wakes the guest as [`wake`], but leaves it to [`finish`] to thaw the workload.
///
/// # Errors
/// The agent did not wake the guest whole.
pub(crate) fn prepare(vm: &Vm, is_required: bool) -> Result<()> {
    let runs = vm.state() == RunState::Running;
    if !is_required && (!runs || guest_note::workload() != Workload::Asleep) {
        return Ok(());
    }
    if !runs {
        return Err(control::refused("require_agent", "a guest that does not run does not answer"));
    }
    let _alone = alone();
    woken(vm, true)
}

/// Thaws the workload of a guest that was woken.
///
/// # Errors
/// The agent does not answer.
pub(crate) fn finish(vm: &Vm) -> Result<()> {
    if guest_note::workload() == Workload::Frozen {
        let _alone = alone();
        step(vm, false)?;
    }
    Ok(())
}

/// Wakes the guest, and leaves its workload frozen.
fn woken(vm: &Vm, hooks: bool) -> Result<()> {
    *awake() = control::wake(vm, hostname(), hooks)?;
    log::debug!("the guest is awake");
    guest_note::set_workload(Workload::Frozen);
    Ok(())
}

fn awake() -> MutexGuard<'static, Awake> {
    AWAKE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The name of a VM that has one.
fn hostname() -> Option<String> {
    home::get().map(|home| home.record.name.to_string())
}

/// Does what the workload needs to run: a thaw, after a wake if it sleeps and `wakes` is set.
fn step(vm: &Vm, wakes: bool) -> Result<()> {
    if wakes && guest_note::workload() == Workload::Asleep {
        woken(vm, true)?;
    }
    let (late, connection) = awake().take_connection();
    control::thaw(vm, late, connection)?;
    log::debug!("the workload runs");
    *awake() = Awake::default();
    guest_note::set_workload(Workload::Runs);
    Ok(())
}

/// Tries in the background until the workload runs or the VM ends. A guest that does not wake whole is thawed
/// all the same.
fn try_again(vm: &Arc<Vm>, error: &Error) {
    log::warn!("{}; the workload stays frozen until the agent answers", volt_vmm::problem(error));
    let vm = Arc::clone(vm);
    let again = move || {
        while vm.state() != RunState::Ended && guest_note::workload() != Workload::Runs {
            if vm.state() == RunState::Running {
                let _alone = alone();
                let done = step(&vm, true).or_else(|_| step(&vm, false));
                if done.is_ok() {
                    return;
                }
            }
            sleep(PAUSE);
        }
    };
    if let Err(failure) = threads::spawn("wake", "to wake the guest", again) {
        log::error!("the workload stays frozen: {failure}");
    }
}

/// Resumes a VM, and wakes its guest if it sleeps.
///
/// # Errors
/// As [`Vm::resume`].
pub(crate) fn resume(vm: &Arc<Vm>) -> Result<()> {
    vm.resume()?;
    wake(vm, false)
}

/// Rewinds a VM, and wakes its guest anew.
///
/// # Errors
/// As [`Vm::rewind`].
pub(crate) fn rewind(vm: &Arc<Vm>) -> Result<RewindStats> {
    let rewound = {
        let _alone = alone();
        let rewound = vm.rewind()?;
        guest_note::rewound();
        rewound
    };
    wake(vm, false)?;
    Ok(rewound)
}
