//! Restores a snapshot: opens it, restores VMs from it, records their working set, rewinds them.

pub(crate) mod host_fit;
pub(crate) mod isolated;
pub mod open;
pub(crate) mod options;
pub(crate) mod record;
pub(crate) mod rewind;
