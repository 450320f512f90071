//! The Connect protocol: calls with one message or a stream of messages each way, over HTTP.
//!
//! Requests may be compressed by gzip. Responses are not, as the protocol permits.

pub mod call;
pub mod codec;
pub mod envelope;
pub mod error;
pub mod events;

pub use call::Call;
pub use error::{Code, RpcError};
pub use events::EventSender;
