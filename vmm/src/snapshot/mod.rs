//! Snapshots: a directory with `state.json` and one memory file.

pub(crate) mod disks;
pub(crate) mod history;
pub(crate) mod lineage;
pub(crate) mod opened;
pub(crate) mod transform;

pub(crate) mod format;
pub(crate) mod restore;
pub(crate) mod take;
pub(crate) mod transfer;
pub use crate::snapshot::disks::images::ChangedImages;
pub use crate::snapshot::format::files::SnapshotFiles;
pub use crate::snapshot::format::manifest::{BaseSnapshot, MemoryFile, Metadata, VERSION};
pub use crate::snapshot::format::pack::{Compression, Packing};
pub use crate::snapshot::format::working_set::WorkingSet;
pub use crate::snapshot::opened::chunks::serve_pager;
pub use crate::snapshot::opened::memory::Unpack;
pub use crate::snapshot::opened::state::version_of;
pub use crate::snapshot::restore::host_fit::features_missing_here;
pub use crate::snapshot::restore::open::Snapshot;
pub use crate::snapshot::restore::options::RestoreOptions;
pub use crate::snapshot::restore::record::{RecordUntil, RecordingSummary, WorkingSetHits};
pub use crate::snapshot::restore::rewind::RewindStats;
pub use crate::snapshot::take::writer::{AtCapture, SnapshotKind, SnapshotOptions};
pub use crate::snapshot::transfer::handover::Handover;
pub use crate::snapshot::transform::convert::convert;
pub use crate::snapshot::transform::inspect::{
    ChunkSum, InspectedMemory, Inspection, NamedPages, PackFacts, StoredRange, inspect,
};
pub use crate::snapshot::transform::merge::merge;
pub use crate::snapshot::transform::verify::{Verified, verify};

/// The machine's state, the configuration and the metadata.
pub const STATE_FILE: &str = "state.json";
/// Raw guest memory, sparse. Offsets are those of `memory::range::Region`.
pub const MEMORY_FILE: &str = "memory.snap";
/// The memory file of a diff: the pages that differ from its base's ([`format::diff`]).
pub const DIFF_FILE: &str = "memory.diff";
/// Packed guest memory ([`format::pack`]).
pub const PACK_FILE: &str = "memory.pack";
/// The pages that a restored guest touched first, once a restore recorded them ([`format::working_set`]).
pub const WORKING_SET_FILE: &str = "working-set";
