//! Files and FIFOs that a running VM appends to: its log and its serial output.

use std::fs::File;
use std::path::Path;

use rustix::fs::OFlags;
use volt_vmm::internal::paths;
use volt_vmm::{Error, Result};

/// Opens a file or FIFO to append to it, and creates the file if it is missing. Neither this nor a write
/// waits for a FIFO's reader. `act` names the act in errors.
pub(crate) fn open(act: &'static str, path: &Path) -> Result<File> {
    // A FIFO that is opened for reading too needs no reader.
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::APPEND | OFlags::NONBLOCK | OFlags::NOCTTY;
    let failed = |source| Error::File { act, name: path.display().to_string(), source };
    paths::open(path, flags, 0o600).map_err(failed)
}
