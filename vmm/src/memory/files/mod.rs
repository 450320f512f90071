//! Files that guest memory lies in: leases, seals and holes.

pub mod lease;
pub mod sealing;
pub(crate) mod sparse;
