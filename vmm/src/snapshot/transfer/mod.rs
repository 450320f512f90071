//! Hands a running VM on without files: to a fork in this process, or to another process.

pub mod handover;
pub(crate) mod in_memory;
