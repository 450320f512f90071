//! Messages between a VM and its pager. Each is a packet of a unix socket, in JSON, with descriptors beside
//! it.

use serde::{Deserialize, Serialize};

use crate::counters::faults::FaultMetrics;
use crate::memory::lazy::prefetch::Reading;

/// Version of the messages. Both ends are the same program, unless it is updated under running VMs.
pub const VERSION: u32 = 4;

/// A request of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum PagerRequest {
    /// Asks for the base. A memfd lies beside it if the VM already has one.
    Base {
        /// Version of the VM's messages.
        version: u32,
        /// Length of the base in bytes.
        memory_len: u64,
    },
    /// Asks for answers to the page faults of the userfaultfd beside it.
    Serve {
        /// Address of the base in the VM's process.
        start: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Asks to fill the whole base.
    Complete,
    /// Asks to fetch the pages of the list in the file beside it ([`crate::memory::page_ranges`]). The pager
    /// answers only if it cannot.
    Prefetch,
    /// Asks for the fetched chunks.
    Fetched,
    /// Asks for a sign of life.
    Ping,
}

/// A message of a pager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum PagerResponse {
    /// The request is done. After [`PagerRequest::Base`], the memfd lies beside it.
    Done,
    /// The request is refused, with the reason.
    Refused(String),
    /// Response to [`PagerRequest::Fetched`], as [`crate::memory::lazy::faults::Fetched`]. The file beside it
    /// lists the chunks that were fetched ahead.
    Fetched {
        /// Length of a chunk in bytes.
        chunk_len: u64,
        /// Number of chunks that a fault waited for.
        touched: u64,
        /// Progress of reading ahead, once it has begun.
        prefetch: Option<Reading>,
        /// Page faults of the VM that this pager answered.
        answered: Option<Box<FaultMetrics>>,
    },
    /// No list is fetched ahead, with the reason.
    NotPrefetched(String),
    /// Response to [`PagerRequest::Ping`].
    Alive,
    /// A range of the VM's memory is unavailable. This is not an answer.
    Unreadable {
        /// First offset.
        start: u64,
        /// Offset after the last.
        end: u64,
        /// Reason.
        why: String,
    },
}
