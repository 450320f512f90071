//! Power cuts: the states in which they may leave a disk, and the checks of each state.
//!
//! ```text
//! CrashDisk ── file system on dm-log-writes ──finish──> Recording ──states──> State ──after──> the mounted remains
//! ```
//!
//! dm-log-writes logs a write when a flush that began after it completes, or at once if the write is forced
//! to the medium. All writes before a point of the log are therefore on the medium by then. Any part of the
//! writes of the next flush may be there, too.

mod disk;
mod image;
mod log;
mod mounted;
mod recording;
mod writeback;

pub use disk::CrashDisk;
pub use recording::{Recording, State};
pub use writeback::Writeback;
