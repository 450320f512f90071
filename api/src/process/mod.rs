//! The process of one VM: how it starts, what signals do to it, and how it ends.

pub(crate) mod exit;
pub(crate) mod fault_signals;
pub(crate) mod fork;
pub(crate) mod log;
pub(crate) mod signals;
pub(crate) mod start;
pub(crate) mod vm_slot;
