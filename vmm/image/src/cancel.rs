//! Ends of long acts on request.

use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};

/// Refuses to go on if the act is cancelled.
pub(crate) fn check(is_cancelled: &AtomicBool) -> Result<()> {
    if is_cancelled.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
}

/// A stream that fails once the act is cancelled.
pub(crate) struct Cancellable<'a, R> {
    pub(crate) inner: R,
    pub(crate) is_cancelled: &'a AtomicBool,
}

impl<R: Read> Read for Cancellable<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        check(self.is_cancelled).map_err(io::Error::other)?;
        self.inner.read(buffer)
    }
}
