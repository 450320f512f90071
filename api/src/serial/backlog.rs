//! The backlog of a client: output that it has not read yet. A full one drops the oldest.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Write};

/// Most bytes.
const MOST: usize = 1 << 20;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Backlog(VecDeque<u8>);

impl Backlog {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
        let excess = self.0.len().saturating_sub(MOST);
        self.0.drain(..excess);
    }

    /// Writes as much as the client takes now.
    ///
    /// # Errors
    /// The client has gone.
    pub(super) fn write_to(&mut self, mut client: impl Write) -> io::Result<()> {
        while !self.0.is_empty() {
            match client.write(self.0.as_slices().0) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => drop(self.0.drain(..written)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_backlog_drops_the_oldest() {
        let mut backlog = Backlog::default();
        backlog.push(&vec![b'a'; MOST]);
        backlog.push(b"bc");
        let mut read = Vec::new();
        backlog.write_to(&mut read).unwrap();
        assert!(backlog.is_empty() && read.len() == MOST && read.ends_with(b"abc"));
    }
}
