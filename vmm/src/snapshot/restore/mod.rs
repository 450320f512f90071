//! Restores a snapshot: opens its files, grants what it names on the host, maps memory, rewinds.

pub mod open;
pub(crate) mod record;
pub(crate) mod rewind;
