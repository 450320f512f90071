//! What was captured of a VM's memory, as one memory again.

use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use super::holes::{is_zero, write_pages};
use super::pack::Source;
use crate::capture::Capture;
use crate::error::{Error, Result};
use crate::memory::PAGE;
use crate::memory::pages::PageSet;
use crate::memory::populated::data_ranges;

/// Bytes copied at once.
const STEP: u64 = 1 << 20;

/// The base where no page lies over it, and else that page.
#[derive(Debug)]
pub(super) struct CapturedMemory<'a> {
    captured: &'a Capture,
    populated: Vec<Range<u64>>,
}

impl<'a> CapturedMemory<'a> {
    /// Of `len` bytes.
    ///
    /// # Errors
    /// The host does not say what the base has.
    pub fn new(captured: &'a Capture, len: u64) -> Result<Self> {
        let data = data_ranges(&captured.base, len)
            .map_err(|source| Error::host("look for data in the base of guest memory", source))?;
        let mut pages = PageSet::none(len);
        data.into_iter().for_each(|range| pages.add(range));
        pages.remove_all(&captured.unneeded);
        // What is not the base's is populated too.
        pages.add_all(&captured.pages);
        Ok(Self { captured, populated: pages.runs().map(|run| run.start..run.end.min(len)).collect() })
    }

    /// Adds what is missing to the file of the pages, so that it is the whole memory. Pages of zeros stay holes. `each` sees all
    /// that is there, step by step: an offset and the bytes from it on.
    ///
    /// # Errors
    /// Memory cannot be read; the file cannot be written, which is as `failed` has it.
    pub fn complete(
        &self,
        failed: &dyn Fn(io::Error) -> Error,
        mut each: impl FnMut(u64, &[u8]),
    ) -> Result<()> {
        let Capture { pages, copy, .. } = self.captured;
        let mut buffer = vec![0; STEP as usize];
        for range in &self.populated {
            for start in range.clone().step_by(STEP as usize) {
                let step = &mut buffer[..(range.end - start).min(STEP) as usize];
                self.read_at(start, step)?;
                each(start, step);
                write_pages(copy, start, step, |at, page| !pages.has(at) && !is_zero(page))
                    .map_err(failed)?;
            }
        }
        Ok(())
    }
}

impl Source for CapturedMemory<'_> {
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
