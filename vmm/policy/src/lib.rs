//! Egress policy of a VM's network: which packets and names its guest may use.
//!
//! ```text
//!  Policy (text rules: file, command line, REST, snapshot)
//!     └── Judge ──> Verdict, with the rule that decided
//!           │  addresses: rules by network, then the ranges that are closed by default
//!           │  names:     rules by name
//!           ├── Filter (one of each interface) ──> Outcome of each frame
//!           │     ├── Frame:       what its headers tell
//!           │     ├── Connections: what the guest began, and what came through a forward
//!           │     ├── Hold:        the beginning of TLS, until its name is known (read_hello)
//!           │     └── Pins:        addresses that names were resolved to
//!           └── Desk (one of each interface): the guest's questions for names
//! read_head: the hosts of HTTP requests, for a relay
//! ```
//!
//! The crate decides, and does nothing: it has no socket, no thread and no clock.

mod client_hello;
mod connections;
mod dns;
mod error;
mod filter;
mod frame;
mod hold;
mod host;
mod judge;
mod name;
mod nets;
mod offload;
mod pins;
mod policy;
mod ports;
mod reply;
mod request_head;
mod rule;
mod special;

pub use client_hello::{ClientHello, HelloStart, LONGEST_HELLO, read_hello};
pub use connections::{MOST_CONNECTIONS, SavedConnection};
pub use dns::{Answered, Ask, Datagram, Desk, FromServer, MOST_UDP, Reply, look, query};
pub use error::{Error, Result};
pub use filter::{Cause, Filter, Held, Interface, Outcome, Taken};
pub use frame::{Arp, Content, Flags, Frame, HEAD, Mac, Malformed, Packet, Segment, Transport};
pub use hold::{Copied, MOST_HELD};
pub use host::HostNetwork;
pub use ipnet::{IpNet, Ipv6Net};
pub use judge::{Gate, Judge, Reason, Verdict};
pub use name::{Name, NamePattern};
pub use offload::{Offload, Version};
pub use pins::SavedPin;
pub use policy::{Action, Denial, Ech, MOST_RULES, Policy};
pub use ports::Ports;
pub use reply::{OF_LINK, ROUTER, reset_for};
pub use request_head::{BodyLength, HeadStart, Host, LONGEST_HEAD, RequestHead, read_head};
pub use rule::{Protocol, Rule, Target};
pub use special::{Range, RangeKind};
