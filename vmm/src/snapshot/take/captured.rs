//! A captured VM's memory as one memory: the base, with the captured pages over it.

use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use crate::error::{Error, Result};
use crate::memory::PAGE;
use crate::memory::files::data::data_ranges;
use crate::memory::page_set::PageSet;
use crate::progress::Progress;
use crate::snapshot::format::holes::{is_zero, write_pages};
use crate::snapshot::format::source::MemorySource;
use crate::snapshot::take::capture::Capture;

/// Bytes copied at once.
const STEP: u64 = 1 << 20;

/// See the module.
#[derive(Debug)]
pub(crate) struct CapturedMemory<'a> {
    captured: &'a Capture,
    populated: Vec<Range<u64>>,
}

impl<'a> CapturedMemory<'a> {
    /// Wraps a capture of `len` bytes of memory.
    ///
    /// # Errors
    /// The host cannot tell where the base has data.
    pub fn new(captured: &'a Capture, len: u64) -> Result<Self> {
        let data = data_ranges(&captured.base, len);
        let pages = populated(data, &captured.unneeded, &captured.pages, len)?;
        Ok(Self { captured, populated: pages.page_ranges().map(|run| run.start..run.end.min(len)).collect() })
    }

    /// Completes the file of the captured pages to the whole memory. Pages of zeros stay holes. Calls `each`
    /// with the offset and bytes of each step, and `about_to_write` with the most bytes that it writes next.
    ///
    /// # Errors
    /// Memory cannot be read, the file cannot be written (`failed` makes that error), or
    /// [`Error::Cancelled`].
    pub fn complete(
        &self,
        failed: &dyn Fn(io::Error) -> Error,
        mut each: impl FnMut(u64, &[u8]),
        about_to_write: impl Fn(u64),
        progress: &Progress,
    ) -> Result<()> {
        let Capture { pages, copy, .. } = self.captured;
        let mut buffer = vec![0; STEP as usize];
        for range in &self.populated {
            for start in range.clone().step_by(STEP as usize) {
                let step = &mut buffer[..(range.end - start).min(STEP) as usize];
                self.read_at(start, step)?;
                each(start, step);
                progress.add(step.len() as u64)?;
                about_to_write(step.len() as u64);
                write_pages(copy, start, step, |at, page| !pages.has(at) && !is_zero(page))
                    .map_err(failed)?;
            }
        }
        Ok(())
    }
}

/// The pages of `len` bytes of memory that may hold data: those with `data` in the base that the guest needs,
/// and those over it.
///
/// # Errors
/// The host cannot tell where the base has data.
pub(crate) fn populated(
    data: io::Result<Vec<Range<u64>>>,
    unneeded: &PageSet,
    over: &PageSet,
    len: u64,
) -> Result<PageSet> {
    let data = data.map_err(|source| Error::host("look for data in the base of guest memory", source))?;
    let mut pages = PageSet::none(len);
    data.into_iter().for_each(|range| pages.add(range));
    pages.remove_all(unneeded);
    pages.add_all(over);
    Ok(pages)
}

impl MemorySource for CapturedMemory<'_> {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let Capture { base, pages, copy, .. } = self.captured;
        let failed = |source| Error::host("read captured guest memory", source);
        let end = offset + into.len() as u64;
        let mut at = offset;
        while at < end {
            let over = pages.has(at);
            let mut to = (at / PAGE + 1) * PAGE;
            while to < end && pages.has(to) == over {
                to += PAGE;
            }
            let part = &mut into[(at - offset) as usize..(to.min(end) - offset) as usize];
            let file = if over { copy } else { &**base };
            file.read_exact_at(part, at).map_err(failed)?;
            at = to;
        }
        Ok(())
    }

    fn populated(&self) -> &[Range<u64>] {
        &self.populated
    }
}
