//! Confinement of the library's threads.
//!
//! A program calls [`confine`] once. Each thread of the library then confines itself when it starts, before
//! it touches guest memory. Its children inherit its confinement and add their own.

mod landlock;
pub(crate) mod opener;
pub(crate) mod process;
mod seccomp;
pub(crate) mod strict;

use std::cell::Cell;
use std::fmt::Display;
use std::sync::{Once, OnceLock};

use crate::error::{Error, Result};
use seccomp::Filters;
pub use seccomp::OnForbiddenCall;
pub use strict::Isolation;
pub use strict::cgroups::CgroupLimits;

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
    /// Connects sockets for devices, in a process of its own.
    Opener,
    /// Works for the program, for example on a snapshot. Not confined.
    Worker,
}

impl ThreadKind {
    /// The kinds with a filter, in the order of their filters.
    pub(crate) const CONFINED: [Self; 6] =
        [Self::Vcpu, Self::Device, Self::Block, Self::Starter, Self::Pager, Self::Opener];

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
    /// Whether a process beside this one connects to the sockets `PATH_N` of vsock devices, which confined
    /// device threads may not. Without it, guests cannot connect to the host.
    pub opener: bool,
    /// Whether the process makes one VM. The opener then takes no path once that VM runs.
    pub one_vm: bool,
    /// Isolates the process by namespaces and limits too, as far as the host allows; the log names what it
    /// does not. The process then goes on in a child, and the started process waits for it.
    pub strict: Option<Isolation>,
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

    /// Leaves out the opener, for VMs without a vsock device.
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
    let Confinement { on_forbidden, seccomp, filters, opener, one_vm, strict } = confinement;
    let filters = seccomp.then(|| Filters::new(*on_forbidden, filters.as_deref())).transpose()?;
    CONFINED.set(Confined { filters, one_vm: *one_vm }).map_err(|_| {
        Error::host("confine the process again", std::io::Error::from(std::io::ErrorKind::AlreadyExists))
    })?;
    // In this order: the opener stays in the host's namespaces, and a user namespace is entered by a process
    // that is dumpable.
    if *opener {
        opener::start()?;
    }
    strict.as_ref().map_or(Ok(()), strict::isolate)?;
    process::harden()
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
    static KIND: Cell<ThreadKind> = const { Cell::new(ThreadKind::Worker) };
}

/// Returns the kind as which this thread is confined, for the threads that it starts.
pub(crate) fn kind_of_this_thread() -> ThreadKind {
    KIND.get()
}

/// Confines a new thread, which inherits the confinement of `parent`.
pub(crate) fn confine_new_thread(parent: ThreadKind, kind: ThreadKind) {
    KIND.set(parent);
    confine_this_thread(kind);
}

/// Confines the calling thread for good as a thread of this kind, if the process is confined. Ends the
/// process if the kernel refuses.
pub fn confine_this_thread(kind: ThreadKind) {
    let Some(Confined { filters, one_vm: _ }) = CONFINED.get() else { return };
    if kind == ThreadKind::Worker || KIND.replace(kind) == kind {
        return;
    }
    let refused = |error: &dyn Display| {
        log::error!("cannot confine a thread of kind {}: {error}; the process ends", kind.name());
        std::process::abort();
    };
    landlock::give_up_rights().unwrap_or_else(|error| refused(&error));
    if let Some(filters) = filters {
        filters.install(kind).unwrap_or_else(|error| refused(&error));
    }
}
