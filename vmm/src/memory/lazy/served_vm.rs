//! A VM whose page faults are answered by a [`super::fault_service`].

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

use rustix::io::Errno;

use super::faults::Faults;
use super::userfault::Userfault;
use crate::counters::faults::FaultCounters;
use crate::error::Error;
use crate::memory::PAGE;

/// Called with an unavailable range of a VM's memory, and the reason. The fault stays unanswered.
pub type Unreadable = Box<dyn Fn(Range<u64>, &Error) + Send + Sync>;

/// A VM whose faults this service answers. Addresses are those of its process.
///
/// `UFFDIO_ZEROPAGE` fills any range that is registered with any userfaultfd of the process
/// (`validate_dst_vma` of mm/userfaultfd.c). Therefore it is called only while the memory is known to be this
/// VM's.
pub struct ServedVm {
    /// The userfaultfd of the VM's memory.
    pub(crate) userfault: Arc<Userfault>,
    /// Address of the VM's memory. All of it is registered, except ranges over which other files are mapped.
    pub(crate) start: u64,
    /// Called with unavailable ranges.
    pub(crate) unreadable: Unreadable,
    /// Counts the answered faults.
    pub(super) answered: FaultCounters,
    /// Whether the VM gave its memory up. Locked for reading during each act on it.
    is_over: RwLock<bool>,
}

impl ServedVm {
    /// A VM whose memory lies at `start`, perhaps in another process.
    #[must_use]
    pub fn new(userfault: Arc<Userfault>, start: u64, unreadable: Unreadable) -> Self {
        let answered = FaultCounters::default();
        Self { userfault, start, unreadable, answered, is_over: RwLock::new(false) }
    }

    /// A VM of this process. Unavailable memory ends it.
    pub(crate) fn of(faults: &Arc<Faults>) -> Self {
        let weak = Arc::downgrade(faults);
        let unreadable = move |range: Range<u64>, error: &Error| {
            if let Some(faults) = weak.upgrade() {
                faults.fail(&crate::error::report(error));
                faults.refuse(range);
            }
        };
        Self::new(Arc::clone(faults.userfault()), faults.start(), Box::new(unreadable))
    }

    /// Acts on the VM's memory, unless its service has ended.
    pub(crate) fn while_served(
        &self,
        act: impl FnOnce() -> rustix::io::Result<()>,
    ) -> rustix::io::Result<()> {
        let is_over = self.is_over.read().unwrap_or_else(PoisonError::into_inner);
        if *is_over { Ok(()) } else { act() }
    }

    /// Ends the service. Waits for acts on the VM's memory, each of which is one call of userfaultfd.
    pub(super) fn end(&self) {
        *self.is_over.write().unwrap_or_else(PoisonError::into_inner) = true;
    }
}

impl fmt::Debug for ServedVm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServedVm").field("start", &self.start).finish_non_exhaustive()
    }
}

/// Maps zero pages into a VM's memory, which allocates none.
pub(crate) fn zero(served: &ServedVm, range: &Range<u64>) -> rustix::io::Result<()> {
    let at = |offset| served.start + offset;
    match served.userfault.zero(at(range.start), range.end - range.start) {
        // Another file is mapped over a part of it.
        Err(Errno::NOENT) => range.clone().step_by(PAGE as usize).try_for_each(|page| {
            match served.userfault.zero(at(page), PAGE) {
                Err(Errno::NOENT) => Ok(()),
                other => other,
            }
        }),
        Err(Errno::SRCH) => Ok(()),
        other => other,
    }
}
