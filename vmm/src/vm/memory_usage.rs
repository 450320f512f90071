//! What memory a VM holds on the host.

use std::ops::Range;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::memory::PAGE;
use crate::memory::dirty::populated::{mapped_pages, private_pages};
use crate::memory::lazy::faults::Fetched;
use crate::memory::lazy::prefetch::Reading;
use crate::memory::ram::GuestRam;
use crate::sync::lock;
use crate::vm::Vm;
use crate::vm::working_set::PrefetchState;

/// What there is, and what was fetched for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryUsage {
    /// In bytes, what the base has that lies under guest memory: of a VM that was never snapshotted all that the guest has touched; else
    /// what was frozen, or the snapshot's memory file, which its clones share in the page cache.
    pub base_bytes: u64,
    /// In bytes, pages of the VM's own beside that. With a base of its own, what the VM holds can come to twice what the guest has touched.
    pub private_bytes: u64,
    /// What was fetched of packed memory that is unpacked as it is touched. None of other memory, and none where a pager does not say.
    pub chunks: Option<Chunks>,
    /// How far reading ahead is, if something is or was read ahead.
    pub prefetch: Option<Reading>,
}

/// Chunks of packed memory that are in the base: for all VMs over it, each once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunks {
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// Those that a VM had to wait for.
    pub on_touch: u64,
    /// Those that were read ahead before anyone touched them.
    pub ahead: u64,
    /// Those of them that this VM has not touched. Chunks below 64 KiB may count as touched because one beside them was: the kernel maps
    /// what is there around a page that is touched.
    pub in_vain: u64,
}

impl Vm {
    /// What memory it holds. Looks through the page tables: some milliseconds for each GiB.
    ///
    /// # Errors
    /// The host does not tell.
    pub fn memory_usage(&self) -> Result<MemoryUsage> {
        let ram = self.running.on_machine(|machine| machine.shell().ram.clone());
        let base = ram.base().file.metadata();
        let base = base.map_err(|source| Error::host("look at the base of guest memory", source))?;
        let private_bytes = private_pages(&ram)?.len() * PAGE;
        let ahead = lock(&self.ahead);
        let list = match &*ahead {
            PrefetchState::Shared(runs) => Some(runs),
            _ => None,
        };
        let fetched = ram.faults().and_then(|faults| faults.paging().fetched(list));
        let prefetch = match &*ahead {
            PrefetchState::Nothing | PrefetchState::Planned(_) => None,
            PrefetchState::Begun(progress) => Some(progress.now()),
            PrefetchState::Shared(_) => fetched.as_ref().and_then(|fetched| fetched.prefetch),
        };
        drop(ahead);
        let chunks = fetched.map(|fetched| chunks(&ram, &fetched)).transpose()?;
        Ok(MemoryUsage { base_bytes: base.blocks() * 512, private_bytes, chunks, prefetch })
    }
}

fn chunks(ram: &GuestRam, fetched: &Fetched) -> Result<Chunks> {
    let Fetched { chunk_len, touched, ahead, prefetch: _ } = fetched;
    let mut mapped = mapped_pages(ram)?;
    // What lies over the base is there, and does not say that anything of the base was touched.
    ram.base().over.iter().for_each(|over| mapped.remove_all(over));
    let in_vain = |chunk: &&Range<u64>| !(*chunk).clone().step_by(PAGE as usize).any(|page| mapped.has(page));
    let in_vain = ahead.iter().filter(in_vain).count() as u64;
    Ok(Chunks { chunk_bytes: *chunk_len, on_touch: *touched, ahead: ahead.len() as u64, in_vain })
}
