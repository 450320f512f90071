//! Confinement of the library's threads.
//!
//! A program calls [`confine`] once. Each thread of the library then confines itself when it starts, before
//! it touches guest memory. Its children inherit its confinement and add their own.

mod in_force;
mod landlock;
pub(crate) mod process;
mod seccomp;
pub(crate) mod strict;
pub(crate) mod this_thread;

use std::cell::Cell;
use std::fmt::Display;
use std::sync::{Once, OnceLock};

use rustix::fs::StatxFlags;

use crate::error::{Error, Result};
use crate::paths;
use crate::paths::opener;
pub use crate::paths::program::ProgramPattern;
pub use crate::paths::rules::Bounds;
pub use in_force::{InForce, KindInForce, in_force};
use seccomp::Filters;
pub use seccomp::OnForbiddenCall;
pub use strict::Isolation;
pub use strict::cgroups::CgroupLimits;
use this_thread::ThisThread;

/// A kind of thread. Each has its own list of allowed system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadKind {
    /// Runs a vCPU.
    Vcpu,
    /// Runs a device other than a disk.
    Device,
    /// Runs a disk.
    Block,
    /// Watches idle devices and starts their threads.
    Starter,
    /// Answers page faults.
    Pager,
    /// Makes system calls with paths for the others, in a process of its own.
    Opener,
    /// Asks the host's servers for names, in a process of its own.
    Resolver,
    /// Works for the program, for example on a snapshot. It starts threads of the other kinds, too.
    Worker,
}

impl ThreadKind {
    /// All kinds, in the order of their filters.
    pub(crate) const ALL: [Self; 8] = [
        Self::Vcpu,
        Self::Device,
        Self::Block,
        Self::Starter,
        Self::Pager,
        Self::Opener,
        Self::Resolver,
        Self::Worker,
    ];

    /// Returns its name in the file of filters.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Vcpu => "vcpu",
            Self::Device => "device",
            Self::Block => "block",
            Self::Starter => "starter",
            Self::Pager => "pager",
            Self::Opener => "opener",
            Self::Resolver => "resolver",
            Self::Worker => "worker",
        }
    }
}

/// Confinement of a process ([`confine`]).
#[derive(Debug)]
#[non_exhaustive]
pub struct Confinement {
    /// Consequence of a forbidden system call.
    pub on_forbidden: OnForbiddenCall,
    /// Whether threads get a filter of system calls.
    pub seccomp: bool,
    /// Filters in place of the built-in ones: JSON of seccompiler with an entry for each kind of thread.
    pub filters: Option<String>,
    /// Whether a process beside this one, the opener, opens files and connects to the sockets `PATH_N` of
    /// vsock devices, and another one starts programs. Without them, threads of kind [`ThreadKind::Worker`]
    /// are not confined, and guests cannot connect to the host.
    pub opener: bool,
    /// Whether the process makes one VM. The opener then takes no path once that VM runs.
    pub one_vm: bool,
    /// Isolates the process by namespaces and limits too, as far as the host allows; the log names what it
    /// does not. The process then goes on in a child, and the started process waits for it.
    pub strict: Option<Isolation>,
    /// The files that the opener may open, if it does not open all that this user may. The kernel holds it to
    /// that by Landlock, and the log says so if it cannot.
    pub bounds: Option<Bounds>,
    /// Programs that the process may start while its guest runs, besides those that it started before.
    pub programs: Vec<ProgramPattern>,
    /// Whether the process starts no other programs, also before its guest runs: it takes its VM from another
    /// process, which may be its guest's by then.
    pub these_programs_only: bool,
}

impl Default for Confinement {
    /// Built-in filters; a forbidden call kills the process.
    fn default() -> Self {
        Self {
            on_forbidden: OnForbiddenCall::KillProcess,
            seccomp: true,
            filters: None,
            opener: true,
            one_vm: false,
            strict: None,
            bounds: None,
            programs: Vec::new(),
            these_programs_only: false,
        }
    }
}

impl Confinement {
    /// Sets what a forbidden system call does.
    #[must_use]
    pub fn on_forbidden(self, on_forbidden: OnForbiddenCall) -> Self {
        Self { on_forbidden, ..self }
    }

    /// Leaves out the filters of system calls.
    #[must_use]
    pub fn without_seccomp(self) -> Self {
        Self { seccomp: false, ..self }
    }

    /// Replaces the built-in filters.
    #[must_use]
    pub fn filters(self, json: impl Into<Option<String>>) -> Self {
        Self { filters: json.into(), ..self }
    }

    /// Says that the process makes one VM.
    #[must_use]
    pub fn one_vm(self) -> Self {
        Self { one_vm: true, ..self }
    }

    /// Isolates the process by namespaces and limits too.
    #[must_use]
    pub fn strict(self, isolation: impl Into<Option<Isolation>>) -> Self {
        Self { strict: isolation.into(), ..self }
    }

    /// Leaves out the opener. Then threads that work for the program are not confined.
    #[must_use]
    pub fn without_opener(self) -> Self {
        Self { opener: false, ..self }
    }
}

/// The confinement of threads.
#[derive(Debug)]
struct Confined {
    /// Absent if the threads are not filtered.
    filters: Option<Filters>,
    one_vm: bool,
}

static CONFINED: OnceLock<Confined> = OnceLock::new();

/// Confines this process and the threads that the library starts from now on, and those on which it runs a
/// vCPU. Nothing undoes it.
///
/// The process is not dumpable, writes no core file and gains no privileges. Threads that a guest reaches get
/// an empty Landlock domain, and a seccomp filter that allows the system calls of their kind. Call it while
/// the process has one thread, since it may fork, and before it makes a VM.
///
/// # Errors
/// [`Error::Config`] if `filters` is not valid; [`Error::Host`] if the host refuses, or if the process is
/// confined already.
pub fn confine(confinement: &Confinement) -> Result<()> {
    let Confinement { on_forbidden, seccomp, filters, opener, one_vm, strict, bounds, .. } = confinement;
    let filters = seccomp.then(|| Filters::new(*on_forbidden, filters.as_deref())).transpose()?;
    CONFINED.set(Confined { filters, one_vm: *one_vm }).map_err(|_| {
        Error::host("confine the process again", std::io::Error::from(std::io::ErrorKind::AlreadyExists))
    })?;
    // rustix finds the vDSO at its first use of a clock. Before Linux 6.4 it opens /proc/self/auxv for that,
    // which a confined thread may not.
    let _ = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // If its first statx(2) fails, rustix tries whether the kernel has that, by a call that a confined thread
    // may not make.
    let _ = rustix::fs::statx(rustix::fs::CWD, "/", rustix::fs::AtFlags::empty(), StatxFlags::empty());
    // In this order: the opener stays in the host's namespaces, and a user namespace is entered by a process
    // that is dumpable.
    if *opener {
        opener::start(&opener::Duties {
            harden: process::harden,
            confine: || confine_this_thread(ThreadKind::Opener),
            confine_resolver: || {
                process::become_nobody();
                confine_this_thread(ThreadKind::Resolver);
            },
            bounds: bounds.as_ref(),
            bound: keep_within,
            programs: &confinement.programs,
            these_programs_only: confinement.these_programs_only,
        })?;
    }
    let first = bounds.as_ref().and_then(|bounds| bounds.directories.first());
    first.into_iter().for_each(|directory| paths::keep_temporary_directory(directory));
    if let Some(isolation) = strict {
        // This process gets other namespaces, and perhaps an empty root.
        paths::keep_current_directory();
        strict::isolate(isolation)?;
    }
    process::keep_pagemap();
    process::harden()
}

/// Keeps the opener within its bounds for good. Ends it if the kernel refuses.
fn keep_within(bounds: &Bounds) {
    if let Err(error) = landlock::keep_within(bounds) {
        log::error!("cannot confine the process that opens files: {error}; it ends");
        std::process::abort();
    }
}

/// Gives up what only a VM that does not run yet needs. Called before each start of a VM.
pub(crate) fn vm_starts() {
    static SEALED: Once = Once::new();
    if CONFINED.get().is_some_and(|confined| confined.one_vm) {
        SEALED.call_once(opener::seal);
    }
}

thread_local! {
    /// The kind as which this thread, or the thread that started it, was confined last.
    static KIND: Cell<Option<ThreadKind>> = const { Cell::new(None) };
}

/// Whether the process is confined.
pub(crate) fn is_confined() -> bool {
    CONFINED.get().is_some()
}

/// Returns the kind as which this thread is confined, for the threads that it starts.
pub(crate) fn kind_of_this_thread() -> Option<ThreadKind> {
    KIND.get()
}

/// Confines a new thread, which a thread of kind `parent` started.
pub(crate) fn confine_new_thread(parent: Option<ThreadKind>, kind: ThreadKind) {
    inherit(parent);
    confine_this_thread(kind);
}

/// Notes that this new thread inherited its confinement from a thread of kind `parent`, which started it, if
/// the process is confined.
pub fn inherit(parent: Option<ThreadKind>) {
    let parent = parent.filter(|_| CONFINED.get().is_some());
    KIND.set(parent);
    if parent.is_some() {
        paths::ask_from_now_on();
    }
}

/// Confines the calling thread for good as a thread of this kind, if the process is confined. Ends the
/// process if the kernel refuses.
pub fn confine_this_thread(kind: ThreadKind) {
    let Some(Confined { filters, one_vm: _ }) = CONFINED.get() else { return };
    if kind == ThreadKind::Worker && !opener::is_running() {
        return;
    }
    let parent = KIND.replace(Some(kind));
    if parent == Some(kind) {
        return;
    }
    let refused = |error: &dyn Display| {
        log::error!("cannot confine a thread of kind {}: {error}; the process ends", kind.name());
        std::process::abort();
    };
    match kind {
        ThreadKind::Opener => landlock::leave_other_processes().unwrap_or_else(|error| refused(&error)),
        ThreadKind::Resolver => landlock::keep_to_names().unwrap_or_else(|error| refused(&error)),
        _ => {
            // Workers end the programs that this process started.
            landlock::give_up_rights(kind == ThreadKind::Worker).unwrap_or_else(|error| refused(&error));
            in_force::note(kind, parent);
            paths::ask_from_now_on();
        }
    }
    if let Some(filters) = filters {
        ThisThread::note();
        filters.install(kind).unwrap_or_else(|error| refused(&error));
    }
}
