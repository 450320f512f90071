//! Takes a snapshot of a running VM: captures memory and disks in passes, and writes the files.

pub(crate) mod capture;
pub(crate) mod captured;
pub(crate) mod files;
pub(crate) mod room;
pub(crate) mod small_diff;
pub(crate) mod taken;
pub(crate) mod trim;
pub mod writer;
