//! A console that records the output of VMs of the library.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use volt_vmm::Console;

use crate::patience::wait_until;

/// Collects a guest's output. Cloning shares it.
#[derive(Clone, Debug, Default)]
pub struct Recorder(Arc<Mutex<Vec<u8>>>);

impl Recorder {
    /// Returns the console that writes here.
    #[must_use]
    pub fn console(&self) -> Console {
        Console::to(self.clone())
    }

    /// Returns all output so far.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    /// Waits until the output contains `text`.
    pub fn wait_for(&self, text: &str) {
        wait_until(&format!("{text:?} came"), || self.text().contains(text));
    }
}

impl Write for Recorder {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
