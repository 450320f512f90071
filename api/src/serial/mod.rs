//! The serial port of a VM with a name: its output goes to a capped log and to clients of a socket, whose
//! input goes to the guest.
//!
//! ```text
//!   vCPU ──write──> Port (memory) ──> thread "serial" ──> log, in records with times
//!                                         │  └──> clients, each with its backlog
//!   guest <──type── thread "typist" <─────┘<── input of clients
//! ```
//!
//! The guest never waits for the log or for a client. A client that reads too slowly misses output.

mod backlog;
pub(crate) mod log;
mod pending;
pub(crate) mod port;
pub(crate) mod reading;
mod record;
mod serve;

pub(crate) use serve::CLIENTS;
