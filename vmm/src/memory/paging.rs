//! Who fills a base, as a VM over it knows them: a thread of this process ([`super::service`]), or a pager process.

use std::fmt;
use std::fs::File;
use std::sync::Arc;

use super::faults::Faults;
use crate::error::Result;

/// See the module.
pub trait Paging: fmt::Debug + Send + Sync {
    /// The base: a hole in it is a page that is zero, or not there yet. As long as memory.
    fn base(&self) -> Arc<File>;

    /// Begins to answer a VM's page faults. Its memory is registered. Gives what [`Paging::end`] knows it by.
    ///
    /// # Errors
    /// Nobody can.
    fn begin(&self, faults: &Arc<Faults>) -> Result<u64>;

    /// The VM's memory is gone.
    fn end(&self, number: u64);

    /// Fills all that is not there yet: from then on a hole is a page of zeros.
    ///
    /// # Errors
    /// A chunk cannot be had.
    fn complete(&self) -> Result<()>;
}
