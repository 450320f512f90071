//! What memory a VM holds on the host.

use std::os::unix::fs::MetadataExt;

use serde::Serialize;

use crate::error::{Error, Result};
use crate::memory::PAGE;
use crate::memory::filler::Filler;
use crate::memory::populated::{mapped_pages, private_pages};
use crate::memory::prefetch::Progress;
use crate::memory::ram::GuestRam;
use crate::sync::lock;
use crate::vm::Vm;
use crate::vm_working_set::Ahead;

/// What there is, and what was fetched for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryHeld {
    /// In bytes, what the base has that lies under guest memory: of a VM that was never snapshotted all that the guest has touched; else
    /// what was frozen, or the snapshot's memory file, which its clones share in the page cache.
    pub base_bytes: u64,
    /// In bytes, pages of the VM's own beside that. With a base of its own, what the VM holds can come to twice what the guest has touched.
    pub private_bytes: u64,
    /// What was fetched of packed memory that a thread of this process unpacks; none of other memory.
    pub chunks: Option<Chunks>,
    /// How far reading ahead is, where this process does it.
    pub prefetch: Option<Prefetched>,
}

/// Chunks of packed memory that are in the base: for all VMs over it, each once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
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

/// How far reading ahead is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Prefetched {
    /// Pages that were to be read.
    pub pages: u64,
    /// Pages that have been, or were there.
    pub read: u64,
    /// Whether it is over: no more are read.
    pub is_over: bool,
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
        let paging = ram.faults().map(|faults| faults.paging());
        let chunks = paging.and_then(|paging| paging.own_filler()).map(|filler| chunks(&ram, filler));
        let progress = match &*lock(&self.ahead) {
            Ahead::Nothing | Ahead::Planned(_) => None,
            Ahead::Begun(progress) => Some(Prefetched::of(progress)),
            Ahead::Shared => {
                paging.and_then(|paging| paging.progress()).map(|progress| Prefetched::of(&progress))
            }
        };
        Ok(MemoryHeld {
            base_bytes: base.blocks() * 512,
            private_bytes,
            chunks: chunks.transpose()?,
            prefetch: progress,
        })
    }
}

impl Prefetched {
    fn of(progress: &Progress) -> Self {
        // In this order: what is over does not change.
        let is_over = progress.is_over();
        Self { pages: progress.all(), read: progress.read(), is_over }
    }
}

fn chunks(ram: &GuestRam, filler: &Filler) -> Result<Chunks> {
    let (mut ahead, mut in_vain, mut mapped) = (0, 0, mapped_pages(ram)?);
    // What lies over the base is there, and does not say that anything of the base was touched.
    ram.base().over.iter().for_each(|over| mapped.remove_all(over));
    for chunk in filler.ahead() {
        ahead += 1;
        in_vain += u64::from(!chunk.step_by(PAGE as usize).any(|page| mapped.has(page)));
    }
    Ok(Chunks { chunk_bytes: filler.chunk_len(), on_touch: filler.touched(), ahead, in_vain })
}
