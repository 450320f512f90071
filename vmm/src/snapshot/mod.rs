//! The snapshot on disk: `state.json` beside `memory.snap` or `memory.pack` in a directory.

mod captured;
mod chunks;
mod composed;
pub mod convert;
pub mod diff;
pub mod digest;
pub(crate) mod fork;
mod grant;
pub mod handover;
mod holes;
pub mod images;
pub mod inspect;
pub mod layers;
pub(crate) mod lineage;
pub mod manifest;
mod memory;
pub mod merge;
pub mod pack;
mod place;
mod raw;
pub mod reader;
pub(crate) mod recording;
mod relative;
pub mod replay;
pub(crate) mod rewind;
mod room;
mod taken;
pub mod verify;
pub mod working_set;
pub mod writer;

pub use chunks::serve_pager;
pub(crate) use chunks::source_of;
pub use handover::Handover;
pub use images::ChangedImages;
pub use manifest::{BaseSnapshot, MemoryFile, Metadata};
pub use memory::Unpack;
pub use merge::merge;
pub use pack::{Compression, Packing};
pub use reader::{RestoreOptions, Snapshot};
pub use recording::{Compared, Marker, Recorded};
pub use rewind::Rewound;
pub use working_set::WorkingSet;
pub use writer::{Kind, SnapshotOptions};

/// Everything but memory.
pub const STATE_FILE: &str = "state.json";
/// Raw guest memory, sparse: offsets are those of `memory::ram::Region`.
pub const MEMORY_FILE: &str = "memory.snap";
/// In its place, in a diff: the pages that are not those of the base (see [`diff`]).
pub const DIFF_FILE: &str = "memory.diff";
/// Or this: the same memory in the format of [`pack`].
pub const PACK_FILE: &str = "memory.pack";
/// Which pages a restored guest touches first, in any of them, once that has been recorded (see [`working_set`]).
pub const WORKING_SET_FILE: &str = "working-set";
