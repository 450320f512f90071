//! The output of the main process, as the agent sends it to the host.
//!
//! It is one vsock connection to [`PORT`] of the host, if a program listens there: the bytes of both streams
//! as they come. The agent ends it after the last byte, and waits until the host has ended it too.

/// Port of the host that takes the output.
pub const PORT: u32 = 49985;
