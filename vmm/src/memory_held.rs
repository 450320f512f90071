//! What memory a VM holds on the host.

use std::os::unix::fs::MetadataExt;

use serde::Serialize;

use crate::error::{Error, Result};
use crate::memory::PAGE;
use crate::memory::populated::private_pages;
use crate::vm::Vm;

/// In bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryHeld {
    /// What the base has that lies under guest memory: of a VM that was never snapshotted all that the guest has touched; else what
    /// was frozen, or the snapshot's memory file, which its clones share in the page cache.
    pub base_bytes: u64,
    /// Pages of the VM's own beside that. With a base of its own, what the VM holds can come to twice what the guest has touched.
    pub private_bytes: u64,
}

impl Vm {
    /// What memory it holds. Looks through the page tables: some milliseconds for each GiB.
    ///
    /// # Errors
    /// The host does not tell.
    pub fn memory_held(&self) -> Result<MemoryHeld> {
        let ram = self.on_machine(|machine| machine.shell().ram.clone());
        let base = ram.base().file.metadata();
        let base = base.map_err(|source| Error::host("look at the base of guest memory", source))?;
        let private_bytes = private_pages(&ram)?.len() * PAGE;
        Ok(MemoryHeld { base_bytes: base.blocks() * 512, private_bytes })
    }
}
