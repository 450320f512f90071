//! Guest memory to be read, however it is stored.

use std::num::NonZero;
use std::ops::Range;
use std::thread;

use crate::error::Result;

/// A memory. It must not change while it is packed.
pub trait MemorySource: Sync {
    /// Reads from `offset` on. What is outside of [`MemorySource::populated`] is never asked for.
    ///
    /// # Errors
    /// It cannot be read.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()>;

    /// Ranges in order and apart, outside of which all is zero.
    fn populated(&self) -> &[Range<u64>];
}

/// Threads to do so many runs on, unless a number is given: one a core, which takes a while to find out.
pub(crate) fn threads_for(runs: u32, given: Option<NonZero<usize>>) -> usize {
    if runs < 2 {
        return 1;
    }
    let threads = given.map_or_else(thread::available_parallelism, Ok);
    threads.map_or(1, NonZero::get).min(runs as usize)
}
