//! Files that guest memory lies in: leases, seals and holes.

pub mod data;
pub mod lease;
pub mod memfd;
pub mod sealing;
pub(crate) mod sparse;
