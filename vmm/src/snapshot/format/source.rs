//! A source of guest memory, in any storage format.

use crate::threads;
use std::num::NonZero;
use std::ops::Range;

use crate::error::Result;

/// Guest memory that does not change while it is read.
pub trait MemorySource: Sync {
    /// Reads bytes from `offset` on. Callers stay within [`MemorySource::populated`].
    ///
    /// # Errors
    /// The memory cannot be read.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()>;

    /// Disjoint ranges in ascending order. All memory outside them is zero.
    fn populated(&self) -> &[Range<u64>];
}

/// The number of threads for so many runs: `given`, or one a core. Asking for the number of cores takes a
/// while.
pub(crate) fn threads_for(runs: u32, given: Option<NonZero<usize>>) -> usize {
    if runs < 2 {
        return 1;
    }
    given.map_or_else(threads::available_parallelism, NonZero::get).min(runs as usize)
}
