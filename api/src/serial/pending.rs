//! Output between the vCPU that writes it and the thread that serves the port.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

/// Most bytes of output that wait for the thread: what comes before it starts, or while it does not run.
const MOST: usize = 4 << 20;

/// Output that the thread has not taken.
#[derive(Debug, Default)]
struct Pending {
    output: Vec<u8>,
    is_closed: bool,
}

/// The state that the port and its thread share.
#[derive(Debug)]
pub(super) struct Shared {
    pending: Mutex<Pending>,
    /// Readable while the thread has something to do.
    pub(super) wake: OwnedFd,
}

impl Shared {
    /// # Errors
    /// The host has no descriptor.
    pub(super) fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { pending: Mutex::default(), wake })
    }

    /// Says that no more output comes.
    pub(super) fn close(&self) {
        self.change(|pending| pending.is_closed = true);
    }

    /// Takes the output. The second value says that no more comes.
    pub(super) fn take(&self) -> (Vec<u8>, bool) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        (std::mem::take(&mut pending.output), pending.is_closed)
    }

    fn change(&self, change: impl FnOnce(&mut Pending)) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let was_idle = pending.output.is_empty() && !pending.is_closed;
        change(&mut pending);
        drop(pending);
        if was_idle {
            // Fails only if it is readable already.
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
    }
}

/// Writes to the port. A vCPU's thread may use it.
#[derive(Debug)]
pub(crate) struct PortWriter(Arc<Shared>);

impl PortWriter {
    pub(super) fn of(shared: Arc<Shared>) -> Self {
        Self(shared)
    }
}

impl Write for PortWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.change(|pending| {
            if pending.output.len() < MOST {
                pending.output.extend_from_slice(bytes);
            }
        });
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Shared {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
