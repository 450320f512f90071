//! Formats of a snapshot's files, independent of any VM.

pub(crate) mod crc;
pub mod diff;
pub mod digest;
pub mod files;
pub(crate) mod holes;
pub mod manifest;
pub mod pack;
pub(crate) mod place;
pub(crate) mod raw;
pub(crate) mod source;
pub mod working_set;
