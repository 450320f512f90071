//! The snapshot on disk: `state.json` beside `memory.snap` in a directory.

pub mod layers;
pub mod manifest;
pub mod reader;
pub mod writer;

pub use manifest::Metadata;
pub use reader::{RestoreOptions, Snapshot};

/// Everything but memory.
pub const STATE_FILE: &str = "state.json";
/// Raw guest memory, sparse: offsets are those of `memory::ram::Region`.
pub const MEMORY_FILE: &str = "memory.snap";
