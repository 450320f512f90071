//! Connections of the host to TCP ports of a VM, over the agent: `GET /volt/port?port=NUMBER`.
//!
//! The request asks for an upgrade to [`PROTOCOL`]. After the answer 101, the connection carries the bytes of
//! both sides, and each side ends its own. Status 502: no program takes the connection.

/// Path of the call.
pub const PATH: &str = "/volt/port";
/// The protocol of the header `Upgrade`.
pub const PROTOCOL: &str = "tcp";
