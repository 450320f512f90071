//! Messages of the RPC services, in protobuf and in its mapping to JSON.
//!
//! Fields of a `oneof` are optional fields here: both encodings are the same on the wire.

pub mod filesystem;
pub mod json;
pub mod process;
