//! Restores a snapshot: opens its files, grants host resources, maps memory, rewinds.

pub mod open;
pub(crate) mod record;
pub(crate) mod rewind;
