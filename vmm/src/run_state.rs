//! States and endings of a VM.

/// How a guest ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The guest powered itself off.
    Poweroff,
    /// The guest asked for a reset. The VM ends; its owner may boot another.
    Reboot,
    /// The guest's kernel panicked, and said it through pvpanic.
    Panicked,
    /// The guest's CPU shut down: a fault in the handler of a double fault.
    TripleFault,
    /// [`crate::Vm::stop`] ended the guest.
    Stopped,
}

/// State of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// The vCPUs run.
    Running,
    /// The vCPUs are parked, and can resume.
    Paused,
    /// The guest has ended.
    Ended,
}
