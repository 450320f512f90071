//! Egress policy of a VM's network: which packets and names its guest may use.
//!
//! ```text
//!  Policy (text rules: file, command line, REST, snapshot)
//!     └── Judge ──> Verdict, with the rule that decided
//!           │  addresses: rules by network, then the ranges that are closed by default
//!           │  names:     rules by name
//!           └── Filter (one of each interface) ──> Outcome of each frame
//!                 ├── Frame:       what its headers tell
//!                 └── Connections: what the guest began, and what came through a forward
//! ```
//!
//! The crate decides, and does nothing: it has no socket, no thread and no clock.

mod connections;
mod error;
mod filter;
mod frame;
mod judge;
mod name;
mod nets;
mod policy;
mod ports;
mod reply;
mod rule;
mod special;

pub use connections::MOST_CONNECTIONS;
pub use error::{Error, Result};
pub use filter::{Cause, Filter, GuestAddresses, Interface, Outcome};
pub use frame::{HEAD, Mac, Malformed};
pub use judge::{Judge, Reason, Verdict};
pub use name::{Name, NamePattern};
pub use policy::{Action, Denial, MOST_RULES, Policy};
pub use ports::Ports;
pub use rule::{Protocol, Rule, Target};
pub use special::{Range, RangeKind};
