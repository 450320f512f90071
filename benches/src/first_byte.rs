//! A console that says when its first byte came.

use std::io::{self, Write};
use std::sync::mpsc::Sender;
use std::time::Instant;

/// See the module. Bytes after the first one are lost.
#[derive(Debug)]
pub struct FirstByte(Option<Sender<Instant>>);

impl FirstByte {
    /// One that tells `first`.
    #[must_use]
    pub fn new(first: Sender<Instant>) -> Self {
        Self(Some(first))
    }
}

impl Write for FirstByte {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(first) = self.0.take() {
            let _ = first.send(Instant::now());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
