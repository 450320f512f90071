//! Memory that a VM holds on the host.

use std::ops::Range;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};

use crate::counters::faults::FaultMetrics;
use crate::error::{Error, Result};
use crate::memory::PAGE;
use crate::memory::dirty::populated::{held_pages, mapped_pages};
use crate::memory::lazy::faults::Fetched;
use crate::memory::lazy::prefetch::Reading;
use crate::memory::ram::GuestRam;
use crate::sync::lock;
use crate::vm::Vm;
use crate::vm::working_set::PrefetchState;

/// Memory that a VM holds, and chunks fetched for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct MemoryUsage {
    /// Bytes of the base under guest memory. For a VM without snapshots, all memory that the guest touched;
    /// otherwise the frozen memory, or the snapshot's memory file, which clones share in the page cache.
    pub base_bytes: u64,
    /// Bytes of the VM's own pages over the base. A VM with a base of its own may hold up to twice the memory
    /// that the guest touched.
    pub private_bytes: u64,
    /// Chunks fetched from packed memory that is unpacked on touch. Absent for other memory, and if a pager
    /// does not tell.
    pub chunks: Option<Chunks>,
    /// Progress of reading ahead, if a working set is or was read ahead.
    pub prefetch: Option<Reading>,
}

/// Chunks of packed memory in the base. All VMs over the base share the count of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct Chunks {
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// Chunks for which a VM waited.
    pub on_touch: u64,
    /// Chunks read ahead before a VM touched them.
    pub ahead: u64,
    /// Chunks read ahead that this VM has not touched. Chunks below 64 KiB may count as touched with a
    /// neighbour: the kernel maps present pages around a touched one.
    pub in_vain: u64,
}

impl Vm {
    /// Memory that the VM holds. Reads the page tables, which takes some milliseconds for each GiB.
    ///
    /// # Errors
    /// The host does not tell.
    pub fn memory_usage(&self) -> Result<MemoryUsage> {
        self.memory_and_faults().map(|(usage, _)| usage)
    }

    /// As [`Vm::memory_usage`], with the answered page faults of memory that is filled on touch.
    pub(super) fn memory_and_faults(&self) -> Result<(MemoryUsage, Option<FaultMetrics>)> {
        // Not from the machine, whose lock a pause may hold for long.
        let ram = &self.machine.work().ram;
        let base = ram.base().file.metadata();
        let base = base.map_err(|source| Error::host("look at the base of guest memory", source))?;
        let private_bytes = held_pages(ram)?.len() * PAGE;
        let ahead = lock(&self.ahead);
        let list = match &*ahead {
            PrefetchState::Shared(runs) => Some(runs),
            _ => None,
        };
        let fetched = ram.faults().and_then(|faults| faults.handler().fetched(list));
        let prefetch = match &*ahead {
            PrefetchState::Nothing | PrefetchState::Planned(_) => None,
            PrefetchState::Begun(progress) => Some(progress.now()),
            PrefetchState::Shared(_) => fetched.as_ref().and_then(|fetched| fetched.prefetch),
        };
        drop(ahead);
        let faults = fetched.as_ref().and_then(|fetched| fetched.answered);
        let faults = faults.or_else(|| ram.faults().and_then(|faults| faults.answered()));
        let chunks = fetched.map(|fetched| chunks(ram, &fetched)).transpose()?;
        Ok((MemoryUsage { base_bytes: base.blocks() * 512, private_bytes, chunks, prefetch }, faults))
    }
}

fn chunks(ram: &GuestRam, fetched: &Fetched) -> Result<Chunks> {
    let Fetched { chunk_len, touched, ahead, prefetch: _, answered: _ } = fetched;
    let mut mapped = mapped_pages(ram)?;
    // Pages over the base are present, and do not show a touch of the base.
    ram.base().over.iter().for_each(|over| mapped.remove_all(over));
    let in_vain = |chunk: &&Range<u64>| !(*chunk).clone().step_by(PAGE as usize).any(|page| mapped.has(page));
    let in_vain = ahead.iter().filter(in_vain).count() as u64;
    Ok(Chunks { chunk_bytes: *chunk_len, on_touch: *touched, ahead: ahead.len() as u64, in_vain })
}
