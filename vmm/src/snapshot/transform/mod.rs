//! Works on a snapshot's files without a VM: inspects, verifies, converts and merges them.

pub mod convert;
pub mod inspect;
pub mod merge;
pub mod verify;
