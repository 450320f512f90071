//! A snapshot's files once they are open: the state file, memory as a source of pages, and what is granted of the host.

pub(crate) mod chunks;
pub(crate) mod composed;
pub(crate) mod grant;
pub(crate) mod memory;
pub(crate) mod relative;
pub(crate) mod state;
