//! DNS of a guest (RFC 1035), as it ends in the device.
//!
//! ```text
//!  guest ──message──> Desk ──allowed question──> a resolver of the host
//!                      │ denied: no such name          │
//!  guest <──answer─────┴──────records, checked─────────┘
//!                             └── addresses of the name ──> pins
//! ```
//!
//! Nothing of a guest's message goes upstream but a name and a type, and nothing of an answer comes back but
//! records that belong to the question.

mod answer;
mod datagram;
mod desk;
mod question;
mod upstream;

pub use datagram::Datagram;
pub use desk::{Answered, Ask, Desk, Reply};
pub use question::MOST_UDP;
pub use upstream::{FromServer, look, query};
