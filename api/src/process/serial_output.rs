//! The receiver of a guest's serial output: standard output, the serial port of a VM with a name, a file or a
//! FIFO.

use std::path::PathBuf;

use volt_vmm::config::devices::Bucket;
use volt_vmm::{Console, Result};

use crate::process::{home, output_file};

/// A choice of the receiver. It is no part of a VM's configuration, and no snapshot keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SerialOutput {
    /// A file or FIFO to append to; standard output, or the port of a VM with a name, if not given. Output
    /// that a full FIFO does not take is lost.
    pub(crate) path: Option<PathBuf>,
    /// Limit in bytes. Output over it is lost.
    pub(crate) limit: Option<Bucket>,
}

impl SerialOutput {
    /// Opens the receiver.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub(crate) fn open(self) -> Result<Console> {
        let file =
            self.path.as_deref().map(|path| output_file::open("open serial output", path)).transpose()?;
        let console = file.map_or_else(home::console, Console::to);
        Ok(self.limit.into_iter().fold(console, Console::limited))
    }
}
