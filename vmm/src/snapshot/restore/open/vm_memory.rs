//! The memory of a VM that is restored: its backing, from the snapshot's file or a memory handler.

use std::sync::Arc;

use super::Snapshot;
use crate::config::HugePages;
use crate::error::{Error, Invalid, Result};
use crate::memory::backing::Backing;
use crate::memory::base::{OverlayPages, PageSize};
use crate::memory::files::lease::Leases;
use crate::memory::lazy::fault_service::Service;
use crate::pager::handler::HandlerClient;
use crate::snapshot::opened::composed::ComposedMemory;
use crate::snapshot::opened::memory::{LazyMemory, MemorySource, SnapshotMemory, Unpack};
use crate::snapshot::restore::isolated::MemoryOfRestore;
use crate::snapshot::restore::options::RestoreOptions;
use crate::snapshot::restore::record::TouchLog;
use crate::timing::step_done;

/// The memory of a VM that is restored.
pub(super) struct VmMemory {
    pub backing: Backing,
    /// Memory that a fork's children fill further.
    pub lazy: Option<LazyMemory>,
    /// Pages that lie over the base.
    pub over: Option<OverlayPages>,
    /// The files that the VM maps.
    pub files: Arc<Leases>,
}

impl Snapshot {
    /// Refuses options for other memory than a handler's.
    pub(super) fn check_handler(&self, options: &RestoreOptions) -> Result<()> {
        let RestoreOptions { unpack, isolate_base, record, .. } = options;
        let asks_for_more = *unpack != Unpack::OnTouch || *isolate_base || record.is_some();
        match self.memory {
            MemorySource::Handler(_) if asks_for_more => {
                Err(Error::config("memory_handler", Invalid::HandlerWithOther))
            }
            _ => Ok(()),
        }
    }

    /// The memory for a VM, in pages of this kind.
    pub(super) fn memory_of_vm(
        &self,
        options: &RestoreOptions,
        kind: HugePages,
        unpack: &Unpack,
        notes: Option<&Arc<TouchLog>>,
    ) -> Result<VmMemory> {
        let memory = match &self.memory {
            MemorySource::File(memory) => memory,
            MemorySource::Handler(handler) => {
                let page_size = match kind {
                    HugePages::Hugetlb => PageSize::Huge,
                    HugePages::None | HugePages::Transparent => PageSize::Small,
                };
                let client = HandlerClient::connect(handler, self.metadata.memory_bytes, page_size)?;
                step_done("memory handler");
                let backing = Backing::Lazy { handler: Arc::new(client), pages: None };
                return Ok(VmMemory { backing, lazy: None, over: None, files: Arc::clone(&self.files) });
            }
        };
        let MemoryOfRestore { memory, over, files } = self.file_for(memory, options, unpack)?;
        Ok(match notes {
            // Touches of a recorded VM's children are not recorded. It has no overlay: its source of pages
            // includes the diff's.
            Some(notes) => {
                let backing = self.noting(&memory, over, &options.unpack, notes)?;
                VmMemory { backing, lazy: None, over: None, files }
            }
            None => {
                let backing = memory.backing(unpack, over.clone(), &options.progress)?;
                VmMemory { backing, lazy: LazyMemory::of(&memory, unpack), over, files }
            }
        })
    }

    /// The memory file for a VM: this snapshot's, or a copy.
    fn file_for(
        &self,
        memory: &Arc<SnapshotMemory>,
        options: &RestoreOptions,
        unpack: &Unpack,
    ) -> Result<MemoryOfRestore> {
        let (memory, over, files) = (Arc::clone(memory), self.over.clone(), Arc::clone(&self.files));
        let shared = MemoryOfRestore { memory, over, files };
        match (options.isolate_base, unpack) {
            (false, _) => Ok(shared),
            (true, Unpack::ByPager(_)) => Err(Error::config("pager", Invalid::PagerWithIsolation)),
            (true, _) => shared.isolated(self.metadata.memory_bytes, &options.progress),
        }
    }

    /// Memory of a VM's own that records touches.
    fn noting(
        &self,
        memory: &SnapshotMemory,
        over: Option<OverlayPages>,
        unpack: &Unpack,
        notes: &Arc<TouchLog>,
    ) -> Result<Backing> {
        if *unpack != Unpack::OnTouch {
            let problem = "a recording fills guest memory page by page in this process, which excludes a \
                           shared pager and unpacking all memory before the start; leave out the recording \
                           or the other option";
            return Err(Error::config("record", problem));
        }
        let source = ComposedMemory::of(memory, self.metadata.memory_bytes, over);
        let noted = Arc::clone(notes);
        let service = Service::noting(Box::new(source), Box::new(move |page| noted.touched(page)))?;
        Ok(Backing::Lazy { handler: Arc::new(service), pages: None })
    }
}
