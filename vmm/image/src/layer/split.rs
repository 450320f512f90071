//! Tells the content of files in a stream from all else, so that the stream can be made again.

use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

/// Gets a stream as its layer has it.
pub trait Record {
    /// Bytes that the layer does not have: headers, and what fills records.
    ///
    /// # Errors
    /// The bytes cannot be kept.
    fn literal(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Bytes that the blob has at an offset.
    ///
    /// # Errors
    /// The piece cannot be kept.
    fn content(&mut self, offset: u64, len: u64) -> io::Result<()>;
}

/// Keeps nothing: the stream cannot be made again.
#[derive(Clone, Copy, Debug)]
pub struct Forget;

impl Record for Forget {
    fn literal(&mut self, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn content(&mut self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
}

/// The offset in the blob to which the next bytes go, if they are content.
pub(super) type Place = Rc<Cell<Option<u64>>>;

/// A stream whose bytes are recorded while they are read.
pub(super) struct Split<'a, R> {
    pub(super) inner: R,
    pub(super) record: &'a mut dyn Record,
    pub(super) place: Place,
}

impl<R: Read> Read for Split<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        match self.place.get() {
            Some(offset) => {
                self.record.content(offset, count as u64)?;
                self.place.set(Some(offset + count as u64));
            }
            None => self.record.literal(&buffer[..count])?,
        }
        Ok(count)
    }
}
