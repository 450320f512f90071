//! Restores a snapshot: opens its files, grants what it names on the host, maps memory, rewinds.

pub(crate) mod chunks;
pub(crate) mod composed;
pub(crate) mod grant;
pub(crate) mod memory;
pub mod open;
pub(crate) mod place;
pub(crate) mod record;
pub(crate) mod relative;
pub(crate) mod rewind;
