//! A snapshot's open files: the state, memory as a source of pages, and grants for host resources.

pub(crate) mod chunks;
pub(crate) mod composed;
pub(crate) mod grant;
pub(crate) mod location;
pub(crate) mod memory;
pub(crate) mod relative;
pub(crate) mod state;
