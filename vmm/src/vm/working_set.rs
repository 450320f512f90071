//! Working sets of a VM: recording one, and reading one ahead.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use crate::error::{Error, Result, report};
use crate::machine::Machine;
use crate::memory::PAGE;
use crate::memory::base::PageSize;
use crate::memory::dirty::populated::touched_pages;
use crate::memory::lazy::prefetch::{PageRanges, PrefetchProgress};
use crate::memory::prefault::{copy_in, map_in, populate};
use crate::memory::ram::GuestRam;
use crate::snapshot::RecordingSummary;
use crate::snapshot::format::working_set::{MOST_MAPPED, Plan, WorkingSet};
use crate::snapshot::restore::record::Recording;
use crate::sync::lock;
use crate::vm::Vm;

/// The state of reading ahead.
#[derive(Debug)]
pub(crate) enum PrefetchState {
    /// Nothing.
    Nothing,
    /// This plan, not started yet.
    Planned(Plan),
    /// Under way for this VM alone.
    Begun(Arc<PrefetchProgress>),
    /// These ranges are under way or were read, for all VMs over the same base.
    Shared(PageRanges),
}

/// Most bytes that are copied for a VM. If the written pages of a set take more, none is copied, and each VM
/// takes a page fault for those that it writes.
const MOST_COPIED: u64 = 32 << 20;

/// Pages to map before the guest runs.
pub(crate) struct PagesToMap {
    ram: GuestRam,
    set: Arc<WorkingSet>,
    progress: Arc<PrefetchProgress>,
}

impl PagesToMap {
    /// Maps them, in the process, and for the guest by `pre_fault`, which maps guest physical addresses. A
    /// working set is advice: the guest runs without it.
    pub(crate) fn map(self, mut pre_fault: impl FnMut(Range<u64>) -> io::Result<()>) {
        let Self { ram, set, progress } = self;
        let begun = Instant::now();
        // A copy of a page in a hole takes a huge page where there are such.
        let unit = if ram.base().has_anonymous_holes { PageSize::Huge.bytes() } else { PAGE };
        let (copied, mapped) = to_copy_and_to_map(&set, unit);
        let copies = copied.iter().try_for_each(|run| copy_in(&ram, run.clone()));
        let for_copies = begun.elapsed();
        let mapped = copies.and_then(|()| mapped.iter().try_for_each(|run| map_in(&ram, run.clone())));
        progress.finish(if mapped.is_ok() { set.pages() } else { 0 });
        if let Err(error) = mapped {
            log::warn!("{}", report(&error));
            return;
        }
        let in_process = begun.elapsed();
        let mut all = set.page_ranges().iter().flat_map(|run| ram.guest_addresses(run));
        // Many hosts cannot do that.
        if let Err(error) = all.try_for_each(&mut pre_fault) {
            log::debug!("memory is not mapped for the guest ahead: {error}");
        }
        let (pages, all) = (set.pages(), begun.elapsed());
        log::debug!(
            "{pages} pages are mapped before the guest runs: copies took {for_copies:.1?}, other pages \
             {:.1?}, the guest's page tables {:.1?}",
            in_process - for_copies,
            all - in_process
        );
    }
}

/// The ranges of a set to copy, and those to map. Memory is copied in units of this many bytes.
fn to_copy_and_to_map(set: &WorkingSet, unit: u64) -> (&[Range<u64>], &[Range<u64>]) {
    let (mut units, mut last) = (0, None);
    for run in set.written() {
        let (from, to) = (run.start / unit, (run.end - 1) / unit);
        units += to - from + u64::from(last != Some(from));
        last = Some(to);
    }
    if units * unit > MOST_COPIED { (&[], set.page_ranges()) } else { (set.written(), set.others()) }
}

impl Vm {
    /// Begins to read ahead what an earlier restore recorded, if the restore's options say so.
    pub(crate) fn prefetch(&self) {
        let mut ahead = lock(&self.ahead);
        let PrefetchState::Planned(plan) = &*ahead else { return };
        // A working set is advice: the VM runs without it.
        *ahead = self.begin(plan).unwrap_or_else(|error| {
            log::warn!("{}", report(&error));
            PrefetchState::Nothing
        });
    }

    fn begin(&self, Plan { set, over }: &Plan) -> Result<PrefetchState> {
        let (ram, control) = self.machine.on_machine(|machine| {
            let shell = machine.shell();
            (shell.ram.clone(), Arc::clone(&shell.control))
        });
        if let Some(faults) = ram.faults() {
            // Pages under a diff's pages are never read, so they are left out.
            let runs = set.page_ranges_without(over.as_deref());
            return faults.handler().prefetch(&runs).map(|()| PrefetchState::Shared(runs));
        }
        let progress = populate(&ram, set.page_ranges())?;
        let at_end = Arc::clone(&progress);
        control.at_end(move || at_end.stop());
        Ok(PrefetchState::Begun(progress))
    }

    /// Maps the working set before a guest runs whose vCPUs have threads, as [`crate::LentVm::run`] does for
    /// one on a lent thread.
    pub(crate) fn map_working_set(&self) {
        if let Some(pages) = self.take_pages_to_map() {
            let first = self.machine.on_machine(Machine::first_vcpu);
            pages.map(|range| lock(&first).pre_fault(range));
        }
    }

    /// Takes over the work of [`Vm::prefetch`] if the set tells which pages the guest will write. Absent for
    /// another set.
    pub(crate) fn take_pages_to_map(&self) -> Option<PagesToMap> {
        let mut ahead = lock(&self.ahead);
        let PrefetchState::Planned(Plan { set, .. }) = &*ahead else { return None };
        let ram = self.machine.on_machine(|machine| machine.shell().ram.clone());
        if set.written().is_empty() || set.pages() > MOST_MAPPED || ram.faults().is_some() {
            return None;
        }
        let (set, progress) = (Arc::clone(set), PrefetchProgress::of(set.page_ranges()));
        *ahead = PrefetchState::Begun(Arc::clone(&progress));
        Some(PagesToMap { ram, set, progress })
    }

    /// Whether [`Vm::keep_working_set`] would keep a set, unless another VM of the same snapshot or fork has
    /// kept one meanwhile.
    #[must_use]
    pub fn lacks_working_set(&self) -> bool {
        self.working_set.is_some()
    }

    /// Keeps what the guest has touched since its restore as the working set of the snapshot, or of the
    /// children of the VM that this one was forked from, which has none.
    /// The page tables tell pages that it wrote from others, so no page has to be filled apart as for a
    /// recording. They also name neighbours of pages that were read. Returns the number of pages,
    /// or nothing if there are too many, of which none are kept: more than 128 MiB.
    ///
    /// # Errors
    /// The VM is not one of a template or of a fork, or there was a working set at its restore, or its memory
    /// is not mapped from a file. Or the file system refuses.
    pub fn keep_working_set(&self) -> Result<Option<u64>> {
        let refused = |problem: &str| Error::config("record", problem);
        let beside = self.working_set.as_ref().ok_or_else(|| {
            refused("only a VM of a template or of a fork without a working set keeps what its guest touched")
        })?;
        let ram = self.machine.on_machine(|machine| machine.shell().ram.clone());
        if ram.faults().is_some() {
            return Err(refused("the memory of this VM is not mapped from a file"));
        }
        let [written, read] = touched_pages(&ram)?;
        let set = WorkingSet::of_written(&written, &read);
        let pages = set.pages();
        if pages > MOST_MAPPED {
            log::debug!("no working set is kept: the guest touched {pages} pages");
            return Ok(None);
        }
        beside.keep(set)?;
        log::debug!("a working set of {pages} pages is kept");
        Ok(Some(pages))
    }

    /// Ends the recording, if it has not ended, keeps it, and returns its summary.
    ///
    /// # Errors
    /// [`Error::Config`]: the VM is not recorded. Or the VM ended before, or the file system refuses.
    pub fn end_recording(&self) -> Result<RecordingSummary> {
        let recording = self.recording.as_ref().ok_or_else(|| {
            Error::config("record", "this VM is not recorded; restore it with `record` set to record it")
        })?;
        recording.finish()
    }

    /// Whether the VM is recorded, or was up to the event.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        self.recording.is_some()
    }

    /// Waits for the end of the recording, and returns its summary. Returns nothing if the VM is not
    /// recorded.
    pub fn wait_recorded(&self) -> Option<Result<RecordingSummary>> {
        self.recording.as_ref().map(Recording::outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::page_set::PageSet;

    #[test]
    fn written_pages_are_copied_unless_they_are_too_many() {
        let memory = 4 * MOST_COPIED;
        let set = |pages: &[Range<u64>]| {
            let (mut written, mut others) = (PageSet::none(memory), PageSet::none(memory));
            pages.iter().for_each(|run| written.add(run.clone()));
            others.add(memory - PAGE..memory);
            WorkingSet::of_written(&written, &others)
        };
        let is_copied = |pages: &[Range<u64>], unit| {
            let set = set(pages);
            let (copied, mapped) = to_copy_and_to_map(&set, unit);
            let all = [copied, mapped].concat();
            assert_eq!(all, set.page_ranges()[..], "nothing is left out");
            assert!(copied.is_empty() || copied == set.written());
            !copied.is_empty()
        };
        let run = |pages: u64| PAGE..(1 + pages) * PAGE;
        assert!(is_copied(&[run(MOST_COPIED / PAGE)], PAGE));
        assert!(!is_copied(&[run(MOST_COPIED / PAGE + 1)], PAGE));
        // Two pages of each huge page.
        let huge = PageSize::Huge.bytes();
        let pairs = |count| {
            let page = |at| at..at + PAGE;
            (0..count).flat_map(|at| [page(at * huge), page(at * huge + 9 * PAGE)]).collect::<Vec<_>>()
        };
        assert!(is_copied(&pairs(16), huge) && !is_copied(&pairs(17), huge) && is_copied(&pairs(17), PAGE));
    }
}
