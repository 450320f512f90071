//! The faults that a call can meet.

use std::fmt;

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call is not executed and fails with this error.
    Error(i32),
    /// The call transfers half of its bytes.
    Short,
    /// The process is killed before the call. A kill after a call leaves what a kill before the next call
    /// leaves.
    Kill,
    /// The VM is killed before a process beside it makes the call, which is made nevertheless.
    KillVm,
}

impl Fault {
    /// Whether a process is killed.
    #[must_use]
    pub fn kills(self) -> bool {
        matches!(self, Self::Kill | Self::KillVm)
    }
}

/// The faults that suit a call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Faults {
    /// Errors of a file system or of lacking resources.
    Errors,
    /// Those, and a short count.
    Transfer,
    /// Errors of a start of a thread or process.
    Thread,
    /// A wait is interrupted.
    Wait,
}

const ERRORS: [Fault; 5] = [
    Fault::Error(libc::ENOSPC),
    Fault::Error(libc::EIO),
    Fault::Error(libc::EINTR),
    Fault::Error(libc::EMFILE),
    Fault::Error(libc::ENOMEM),
];

impl Faults {
    /// Lists them, without the kill.
    pub(super) fn list(self) -> Vec<Fault> {
        match self {
            Self::Errors => ERRORS.to_vec(),
            Self::Transfer => [ERRORS.as_slice(), &[Fault::Short]].concat(),
            Self::Thread => vec![Fault::Error(libc::EAGAIN), Fault::Error(libc::ENOMEM)],
            Self::Wait => vec![Fault::Error(libc::EINTR)],
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Error(libc::ENOSPC) => "ENOSPC",
            Self::Error(libc::EIO) => "EIO",
            Self::Error(libc::EINTR) => "EINTR",
            Self::Error(libc::EMFILE) => "EMFILE",
            Self::Error(libc::ENOMEM) => "ENOMEM",
            Self::Error(libc::EAGAIN) => "EAGAIN",
            Self::Error(other) => return write!(f, "error {other}"),
            Self::Short => "short count",
            Self::Kill => "kill",
            Self::KillVm => "kill of the VM",
        };
        f.write_str(name)
    }
}
