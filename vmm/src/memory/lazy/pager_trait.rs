//! Who fills a base, as a VM over it knows them: a thread of this process ([`crate::memory::lazy::fault_service`]), or a pager process.

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use super::faults::Faults;
use super::prefetch::{Reading, Runs};
use crate::error::Result;
use crate::memory::ram::AddressRange;

/// See the module.
pub trait Paging: fmt::Debug + Send + Sync {
    /// The base: a hole in it is a page that is zero, or not there yet. As long as memory.
    fn base(&self) -> Arc<File>;

    /// Begins to answer a VM's page faults. Its memory is registered. Gives what [`Paging::end`] knows it by.
    ///
    /// # Errors
    /// Nobody can.
    fn begin(&self, faults: &Arc<Faults>) -> Result<u64>;

    /// Ends the service of a VM. Its memory lies in `range`, which nobody accesses any more. It is dropped,
    /// and so unmapped, once no late answer to a page fault can change what is mapped there next.
    fn end(&self, number: u64, range: AddressRange);

    /// Fetches what is in a range of a VM's memory and not there yet, on this thread: afterwards it is
    /// touched without a message. Says whether that can be done here.
    ///
    /// # Errors
    /// A chunk cannot be had.
    fn bring(&self, number: u64, range: Range<u64>) -> Result<bool> {
        let (_, _) = (number, range);
        Ok(false)
    }

    /// Prepares for several faults at the same time, before a VM with more than one vCPU runs. A pager process
    /// prepares by itself.
    fn expect_several(&self) {}

    /// Fills all that is not there yet: from then on a hole is a page of zeros.
    ///
    /// # Errors
    /// A chunk cannot be had.
    fn complete(&self) -> Result<()>;

    /// Begins to fetch what is in these ranges and not there yet, in their order. Returns at once; a chunk that cannot be had then is left
    /// for whoever touches it.
    ///
    /// # Errors
    /// Nobody can.
    fn prefetch(&self, runs: &Runs) -> Result<()>;

    /// What has been fetched for all VMs over the base, and how far reading ahead is of the list that this
    /// VM has named. None where whoever does it does not say.
    fn fetched(&self, ahead: Option<&Runs>) -> Option<Fetched>;
}

/// Chunks that are in a base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// Bytes of a chunk.
    pub chunk_len: u64,
    /// How many were fetched because somebody waited for them.
    pub touched: u64,
    /// Where those are that were fetched before.
    pub ahead: Vec<Range<u64>>,
    /// How far reading ahead of the VM's list is, once it has begun.
    pub prefetch: Option<Reading>,
}
