//! Parts of the library that a guest, a file or a client feeds, for tests/fuzz alone (the feature `fuzzing`).
//! They are no API, and change without notice.
//!
//! ```text
//!   guest:   machine (ports and MMIO), devices (Guest, FuzzedDevice), Queue, metadata
//!   file:    state, layer; diff, page_set, page_ranges
//!   process: packets; message and list (a pager's); crc64 for forged handovers
//! ```

pub mod layer;
pub mod machine;
pub mod metadata;
pub mod state;

use std::os::fd::{AsFd, OwnedFd};

pub use crate::devices::virtio::fuzzing::{FuzzedDevice, Guest, MEMORY, Queue};
use crate::memory::lazy::userfault::Userfault;
pub use crate::memory::{page_ranges, page_set};
pub use crate::pager::{list, message};
pub use crate::snapshot::format::{diff, digest};

/// Packets with descriptors.
pub mod packets {
    pub use crate::packets::{receive, send};
}

/// Returns a userfaultfd of this process without memory, if the host gives one.
#[must_use]
pub fn userfaultfd() -> Option<OwnedFd> {
    Userfault::new().ok()?.as_fd().try_clone_to_owned().ok()
}

/// Returns the CRC-64 that state files, diffs, working sets and handovers carry.
#[must_use]
pub fn crc64(bytes: &[u8]) -> u64 {
    crate::snapshot::format::crc::CRC.checksum(bytes)
}
