//! Power cuts: what a disk may hold when its power goes, and what is made of it afterwards.
//!
//! ```text
//! CrashDisk ── file system on dm-log-writes ──finish──> Recording ──states──> State ──after──> the mounted remains
//! ```
//!
//! dm-log-writes logs a write only when a flush that began after it has completed, or at once where the write
//! itself is forced to the medium. Everything before a point of the log is therefore on the medium by then,
//! and the writes of the next flush may be there in any part.

mod disk;
mod image;
mod log;
mod mounted;
mod recording;
mod writeback;

pub use disk::CrashDisk;
pub use recording::{Recording, State};
pub use writeback::Writeback;
