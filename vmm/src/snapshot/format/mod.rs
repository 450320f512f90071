//! The files of a snapshot, without a VM: how they are laid out, inspected, verified, converted and merged.

pub mod diff;
pub mod digest;
pub(crate) mod holes;
pub mod manifest;
pub mod pack;
pub(crate) mod raw;
pub mod working_set;
