//! Files of guest memory: leases, seals and holes.

pub mod data;
pub mod lease;
pub mod memfd;
pub mod sealing;
pub(crate) mod sparse;
