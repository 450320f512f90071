//! Resets changed pages of guest memory to their backing's content.

use std::ops::Range;

use rustix::mm::MapFlags;

use crate::error::{Error, Result};
use crate::memory::PAGE;
use crate::memory::backing::{map, map_huge};
use crate::memory::base::{Base, OverlayPages, PageSize};
use crate::memory::files::memfd::never_huge;
use crate::memory::lazy::faults::Faults;
use crate::memory::own_writes::presence;
use crate::memory::page_set::PageSet;
use crate::memory::ram::GuestRam;
use crate::memory::reclaim::drop_private;

/// Runs of at least this many pages are dropped and not copied, which costs less and frees them. The guest
/// then faults in those that it needs: 2.3 us for each that it writes, while copying a page costs 0.4 us.
const MANY: u64 = (64 << 20) / PAGE;

/// Resets `pages`. The caller keeps all others from touching memory, which is mapped private over its base
/// and the pages `over` it.
///
/// # Errors
/// A page cannot be read. Memory is then partly reset and must not be used.
pub fn reset(ram: &GuestRam, pages: &PageSet, over: Option<&OverlayPages>) -> Result<()> {
    let copy = |pages: &PageSet, from: &_| {
        let failed = |source| Error::host("read guest memory to reset it", source);
        pages.page_ranges().try_for_each(|run| ram.copy_from(run, from)).map_err(failed)
    };
    if let Some(presence) = presence(ram.guest()) {
        ram.given().page_ranges().for_each(|run| presence.forget_given_back(run));
    }
    ram.forget_given();
    let mut of_base = pages.clone();
    if let Some(OverlayPages { pages: over, file }) = over {
        of_base.remove_all(over);
        let mut of_over = pages.clone();
        of_over.remove_all(&of_base);
        copy(&of_over, file)?;
    }
    // Reading what a lazily filled base lacks gives zeros, so such pages are touched instead.
    if ram.faults().is_none() && of_base.len() <= MANY {
        return copy(&of_base, &ram.base().file);
    }
    if let Some(faults) = ram.own_faults() {
        return missing_runs(ram, &of_base).into_iter().try_for_each(|run| make_missing(ram, faults, run));
    }
    let failed = |errno: rustix::io::Errno| Error::host("drop guest memory to reset it", errno);
    of_base.page_ranges().try_for_each(|run| drop_private(ram, run)).map_err(failed)
}

/// Refuses a reset that would give pages of zeros: a service that fills this VM's own pages has no other
/// content for those that the guest returned to the host.
///
/// # Errors
/// [`Error::Config`]: the guest has returned pages.
pub fn check(ram: &GuestRam) -> Result<()> {
    match ram.given().len() {
        0 => Ok(()),
        _ if ram.own_faults().is_none() => Ok(()),
        count => Err(Error::config(
            "memory",
            format!(
                "the guest has returned {count} pages to the host, whose content the memory handler no \
                 longer has; restore the snapshot again instead"
            ),
        )),
    }
}

/// The most runs that are made missing one by one. Beyond that the pause would last longer than 0.1 s.
const MOST_RUNS: usize = 4096;

/// The runs of pages to make missing: `pages`, in whole huge pages if the memory has those, or all memory.
fn missing_runs(ram: &GuestRam, pages: &PageSet) -> Vec<Range<u64>> {
    let page_size = ram.with_base(|base| base.page_size);
    let mut whole = PageSet::none(ram.len());
    pages.page_ranges().for_each(|run| whole.add(page_size.around(&run)));
    let runs: Vec<_> = whole.page_ranges().take(MOST_RUNS + 1).collect();
    match runs.len() <= MOST_RUNS {
        true => runs,
        false => std::iter::once(0..ram.len()).collect(),
    }
}

/// Makes pages missing again, without a report that they were dropped: the service then has their first
/// content for them.
fn make_missing(ram: &GuestRam, faults: &Faults, run: Range<u64>) -> Result<()> {
    let (start, len) = (ram.host_address_of(run.start), run.end - run.start);
    let remap = || {
        let Base { file, page_size, .. } = ram.base();
        match page_size {
            PageSize::Small => map(ram, run.clone(), &file, MapFlags::PRIVATE)?,
            PageSize::Huge => map_huge(ram, run.clone(), &file, MapFlags::PRIVATE)?,
        }
        never_huge(start, len);
        // Before it is registered, nothing touches it: the VM is paused.
        let registered = faults.userfault().register(start as u64, len);
        registered.map_err(|errno| Error::host("watch guest memory for pages that are missing", errno))
    };
    match presence(ram.guest()) {
        Some(presence) => presence.drop_pages(run.clone(), remap),
        None => remap(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;

    use proptest::prelude::*;
    use vm_memory::{Bytes, GuestAddress};

    use super::*;
    use crate::memory::backing::Backing;
    use crate::memory::files::memfd::fresh;

    /// A file with this word in each page.
    fn filled(len: u64, word: u64) -> Arc<File> {
        let file = fresh(len).unwrap();
        (0..len).step_by(PAGE as usize).for_each(|at| file.write_all_at(&word.to_le_bytes(), at).unwrap());
        Arc::new(file)
    }

    fn ram(len: u64, over: Option<&OverlayPages>) -> GuestRam {
        let ram = GuestRam::reserve(len).unwrap();
        Backing::Private { base: filled(len, 1), pages: over.cloned() }.map(&ram).unwrap();
        ram
    }

    fn word(ram: &GuestRam, at: u64) -> u64 {
        ram.guest().read_obj(GuestAddress(at)).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn rewind_restores_written_pages(
            diff in prop::collection::vec((0_u64..300, 1_u64..40), 0..6),
            written in prop::collection::vec((0_u64..300, 1_u64..40), 0..6),
        ) {
            let len = 2 << 20;
            let set = |ranges: &[(u64, u64)]| {
                let mut set = PageSet::none(len);
                ranges.iter().for_each(|(start, count)| set.add(start * PAGE..(start + count) * PAGE));
                set
            };
            let over = OverlayPages { pages: Arc::new(set(&diff)), file: filled(len, 2) };
            let (ram, written) = (ram(len, Some(&over)), set(&written));
            for at in written.page_ranges().flat_map(|run| run.step_by(PAGE as usize)) {
                ram.guest().write_obj(3_u64, GuestAddress(at)).unwrap();
            }
            reset(&ram, &written, Some(&over)).unwrap();
            for at in (0..len).step_by(PAGE as usize) {
                prop_assert_eq!(word(&ram, at), if over.pages.has(at) { 2 } else { 1 }, "{:#x}", at);
            }
        }
    }

    #[test]
    fn rewind_of_many_pages_returns_them_to_the_host() {
        let len = 2 * MANY * PAGE;
        let ram = ram(len, None);
        (0..len)
            .step_by(PAGE as usize)
            .for_each(|at| ram.guest().write_obj(3_u64, GuestAddress(at)).unwrap());
        let private = || super::super::populated::private_pages(&ram).unwrap().len();
        assert_eq!(private(), 2 * MANY);
        let mut all = PageSet::none(len);
        all.add(0..len);
        reset(&ram, &all, None).unwrap();
        assert_eq!(private(), 0);
        assert!((0..len).step_by(PAGE as usize).all(|at| word(&ram, at) == 1));
    }

    #[test]
    fn rewind_restores_pages_that_the_guest_had_returned() {
        let ram = ram(1 << 20, None);
        crate::memory::reclaim::give_back(&ram, 0x4000, 2 * PAGE).unwrap();
        assert!(ram.given().has(0x4000) && ram.given().len() == 2);
        reset(&ram, &PageSet::none(ram.len()), None).unwrap();
        assert!(ram.given().is_empty());
    }

    #[test]
    fn missing_base_fails_the_rewind() {
        let ram = ram(1 << 20, None);
        let mut one = PageSet::none(ram.len());
        one.add(PAGE..2 * PAGE);
        ram.base().file.set_len(0).unwrap();
        let error = reset(&ram, &one, None).unwrap_err().to_string();
        assert_eq!(error, "cannot read guest memory to reset it");
    }
}
