//! The files of a snapshot, without a VM: how they are laid out, inspected, verified, converted and merged.

pub mod convert;
pub mod diff;
pub mod digest;
pub(crate) mod holes;
pub mod inspect;
pub mod manifest;
pub mod merge;
pub mod pack;
pub(crate) mod raw;
pub mod verify;
pub mod working_set;
