//! The snapshot on disk: `state.json` beside `memory.snap` or `memory.pack` in a directory.

pub mod convert;
pub mod inspect;
pub mod layers;
pub mod manifest;
mod memory;
pub mod pack;
mod ram_source;
pub mod reader;
pub mod verify;
pub mod writer;

pub use manifest::Metadata;
pub use pack::{Compression, Packing};
pub use reader::{RestoreOptions, Snapshot};
pub use writer::SnapshotOptions;

/// Everything but memory.
pub const STATE_FILE: &str = "state.json";
/// Raw guest memory, sparse: offsets are those of `memory::ram::Region`.
pub const MEMORY_FILE: &str = "memory.snap";
/// Or this: the same memory in the format of [`pack`].
pub const PACK_FILE: &str = "memory.pack";
