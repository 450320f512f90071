//! The snapshot on disk: `state.json` beside `memory.snap` in a directory.

pub mod diff;
pub mod digest;
pub mod layers;
pub(crate) mod lineage;
pub mod manifest;
pub mod merge;
pub mod reader;
pub mod writer;

pub use manifest::{BaseSnapshot, Metadata};
pub use merge::merge;
pub use reader::{RestoreOptions, Snapshot};
pub use writer::{Kind, SnapshotOptions};

/// Everything but memory.
pub const STATE_FILE: &str = "state.json";
/// Raw guest memory, sparse: offsets are those of `memory::ram::Region`.
pub const MEMORY_FILE: &str = "memory.snap";
/// In its place, in a diff: the pages that are not those of the base (see [`diff`]).
pub const DIFF_FILE: &str = "memory.diff";
