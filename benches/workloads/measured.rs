//! Results, as lines of JSON.

use serde::{Deserialize, Serialize};

/// A file system that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// The root file system of the image.
    Image,
    /// Ext4 in the same guest.
    Native,
}

/// One execution of a workload.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Done {
    /// Its name.
    pub workload: String,
    /// Whether the file system's caches had its files.
    pub is_warm: bool,
    /// Time in nanoseconds.
    pub ns: u64,
    /// Number of files, requests or programs.
    pub count: u64,
    /// A sum over all that it found. Equal on all file systems.
    pub sum: u64,
}

/// Requests to disks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
    pub kib_read: u64,
}

/// A result of the guest.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    pub place: Place,
    /// Those of the whole process, whose workloads share them.
    pub requests: Requests,
    pub done: Done,
}
