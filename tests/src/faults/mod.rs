//! Faults of system calls. An injector counts the calls of an act, then fails one of them when the act is
//! repeated.
//!
//! ```text
//! Injector ──apply──> child: every watched call waits ──listener──> a thread here: counts it, and lets it go on,
//!                                                                   fails it, cuts it short, or kills the child
//! record(act) ──> calls ──cases──> each call × its faults ──inject(case, act)──> the test checks what is left
//! ```
//!
//! It works by seccomp's user notification, not by ptrace. A notification stops only the calling thread, at
//! the watched calls alone. Descendants inherit the filter, so forks and pagers need no attention. The tracer
//! of a process sees each of its signals, and a VM kicks its vCPUs by signals. A notification cannot change
//! arguments, so the injector itself executes half of a transfer for a short count. It cannot act after a
//! call either: a kill after a call is the kill before the next.
#![allow(unsafe_code)]

mod calls;
mod cases;
mod fault;
mod filter;
mod tracee;

pub use calls::Side;
pub use cases::{Case, Sample};
pub use fault::Fault;
pub use tracee::wait_for_end;

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::process::Pid;

use crate::notified::{self, Answer};
use tracee::Tracee;

/// Lowest number of the descriptor over which a child sends its listener. The filter lets calls on it pass.
const FAR: i32 = 900;

/// A call of an act.
#[derive(Clone, Debug)]
pub struct Call {
    /// The call's name.
    pub name: &'static str,
    /// Its path or the target of its descriptor.
    pub object: String,
    /// The ioctl's request, or 0.
    request: u32,
    /// The process that called.
    pub caller: Caller,
    /// The process, or the VM that it serves, if a fault was injected.
    pub process: u32,
    faults: fault::Faults,
}

/// A process, by its duty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// It makes calls with paths for a VM.
    Opener,
    /// It starts programs for a VM.
    Starter,
    /// A VM, a pager or a command.
    Other,
}

impl Caller {
    fn of(process: u32) -> Self {
        match fs::read_to_string(format!("/proc/{process}/comm")).as_deref() {
            Ok("volt-opener\n") => Self::Opener,
            Ok("volt-starter\n") => Self::Starter,
            _ => Self::Other,
        }
    }
}

/// Threads mix the calls of an act, so a call is found again by its place among those of its kind: of the
/// same caller, name and request.
type Kind = (Caller, &'static str, u32);

/// See the module. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Injector {
    side: Side,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// Calls outside an act are not counted.
    counts: bool,
    calls: Vec<Call>,
    plan: Option<Case>,
    hit: Option<Call>,
    /// The process beside a VM that was killed.
    outlives_vm: Option<Pid>,
}

impl Injector {
    /// Makes an injector that injects nothing yet.
    #[must_use]
    pub fn of(side: Side) -> Self {
        Self { side, state: Arc::default() }
    }

    /// Watches a command and all its descendants.
    ///
    /// # Panics
    /// The host refuses a socket or a descriptor.
    pub fn apply(&self, command: &mut Command) {
        let (near, far) = UnixStream::pair().expect("make a socket");
        // SAFETY: the call takes numbers only.
        let far = match unsafe { libc::fcntl(far.as_raw_fd(), libc::F_DUPFD_CLOEXEC, FAR) } {
            -1 => panic!("duplicate a socket: {}", io::Error::last_os_error()),
            // SAFETY: the descriptor is new.
            fd => unsafe { OwnedFd::from_raw_fd(fd) },
        };
        let program = filter::program(self.side, far.as_raw_fd());
        // SAFETY: between fork and exec only system calls are made, on a program that exists already.
        unsafe {
            command.pre_exec(move || notified::send(far.as_fd(), notified::install(&program)?.as_fd()))
        };
        let injector = self.clone();
        thread::spawn(move || {
            let Some(listener) = notified::receive(&near) else { return };
            while let Ok(call) = notified::next(&listener) {
                if let Some(call) = call {
                    notified::answer(&listener, &call, injector.decide(&call));
                }
            }
        });
    }

    /// Returns the calls of an act.
    pub fn record<T>(&self, act: impl FnOnce() -> T) -> (T, Vec<Call>) {
        self.begin(None);
        let result = act();
        (result, self.end().calls)
    }

    /// Injects the fault of a case. Returns the call, or none if the act made fewer calls this time.
    ///
    /// # Panics
    /// The opener or starter of a killed VM does not end.
    pub fn inject<T>(&self, case: &Case, act: impl FnOnce() -> T) -> (T, Option<Call>) {
        self.begin(Some(case.clone()));
        let result = act();
        let state = self.end();
        if let Some(process) = state.outlives_vm {
            tracee::wait_for_end(process);
        }
        (result, state.hit)
    }

    fn begin(&self, plan: Option<Case>) {
        *self.lock() = State { counts: true, plan, ..State::default() };
    }

    fn end(&self) -> State {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the answer to a call.
    fn decide(&self, notice: &libc::seccomp_notif) -> Answer {
        let tracee = Tracee::of(notice);
        let Some(watched) = self.side.find(notice.data.nr) else { return Answer::Continue };
        let mut state = self.lock();
        if !state.counts || !tracee.meets(watched.when) {
            return Answer::Continue;
        }
        let Some(object) = tracee.object(watched.object) else { return Answer::Continue };
        let request = if watched.name == "ioctl" { notice.data.args[1] as u32 } else { 0 };
        let (caller, faults) = (tracee.caller(), watched.faults);
        let call = Call { name: watched.name, object, request, caller, process: 0, faults };
        let nth = state.calls.iter().filter(|earlier| earlier.kind() == call.kind()).count();
        state.calls.push(call.clone());
        let Some(case) = state.plan.take_if(|case| (case.kind, case.nth) == (call.kind(), nth)) else {
            return Answer::Continue;
        };
        let vm = tracee.vm();
        let answer = match case.fault {
            Fault::Error(errno) => Answer::Error(errno),
            Fault::Short => tracee.transfer_half().map_or(Answer::Continue, Answer::Value),
            Fault::Kill => {
                tracee::kill(tracee.process());
                Answer::Continue
            }
            Fault::KillVm => {
                tracee::kill(vm);
                state.outlives_vm = tracee.process();
                Answer::Continue
            }
        };
        state.hit = Some(Call { process: vm.map_or(0, tracee::id), ..call });
        answer
    }
}

impl Call {
    fn kind(&self) -> Kind {
        (self.caller, self.name, self.request)
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.caller {
            Caller::Opener => f.write_str("the opener's ")?,
            Caller::Starter => f.write_str("the starter's ")?,
            Caller::Other => {}
        }
        match self.request {
            0 => write!(f, "{} {}", self.name, self.object),
            request => write!(f, "{} {request:#x} {}", self.name, self.object),
        }
    }
}
