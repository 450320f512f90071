//! Maps guest memory over the reserved range. The only place that matches on [`Backing`].
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::PAGE;
use super::ram::GuestRam;
use crate::error::{Error, Result};
use crate::memory::base::{Base, OverlayPages, PageSize};
use crate::memory::files::memfd::{fresh, fresh_huge, lacks_huge_pages, never_huge};
use crate::memory::lazy::faults::{FaultHandler, Faults, FilledPages};
use crate::timing::step_done;

/// The content of a guest's RAM.
#[derive(Clone, Debug)]
pub enum Backing {
    /// Empty memory: a fresh memfd, mapped shared.
    Fresh,
    /// Empty memory in huge pages: a fresh memfd of hugetlbfs, mapped shared.
    FreshHuge,
    /// An immutable base, mapped private, so the guest's writes stay its own.
    Private {
        /// The base, of guest memory's length.
        base: Arc<File>,
        /// Pages over the base.
        pages: Option<OverlayPages>,
    },
    /// As `Private`, over a base that page faults fill.
    Lazy {
        /// The service that fills the base.
        handler: Arc<dyn FaultHandler>,
        /// Pages over the base.
        pages: Option<OverlayPages>,
    },
}

/// The most mappings of a VM beside the base's. The kernel allows a process 65,530 by default
/// (Documentation/admin-guide/sysctl/vm.rst, `max_map_count`).
const MOST_MAPPINGS: u32 = 4096;
/// The shortest run of pages that is mapped. Copying a shorter one costs less.
const WORTH_MAPPING: u64 = 16 * PAGE;

impl Backing {
    /// Maps the backing over all of `ram`.
    ///
    /// # Errors
    /// The host refused the memory.
    pub fn map(self, ram: &GuestRam) -> Result<()> {
        let is_fresh_huge = matches!(self, Self::FreshHuge);
        let (file, private_to, pages, handler) = match self {
            Self::Fresh => (Arc::new(fresh(ram.len())?), 0, None, None),
            Self::FreshHuge => (Arc::new(fresh_huge(ram.len())?), 0, None, None),
            Self::Private { base, pages } => (base, ram.len(), pages, None),
            Self::Lazy { handler, pages } => (handler.base(), ram.len(), pages, Some(handler)),
        };
        let page_size = match &handler {
            Some(handler) => handler.page_size(),
            None if is_fresh_huge => PageSize::Huge,
            None => PageSize::Small,
        };
        let over = pages.as_ref().map(|over| Arc::clone(&over.pages));
        let base = Base { file, private_to, over, has_anonymous_holes: false, page_size };
        let sharing = if base.private_to > 0 { MapFlags::PRIVATE } else { MapFlags::SHARED };
        for region in ram.regions() {
            let range = region.offset..region.offset + region.len;
            match page_size {
                PageSize::Small => map(ram, range, &base.file, sharing)?,
                PageSize::Huge => map_huge(ram, range, &base.file, sharing)?,
            }
        }
        if private_to == 0 {
            prefer_huge_pages(ram);
        }
        if let Some(handler) = handler {
            never_huge(ram.host_address_of(0), ram.len());
            // Registered before the first touch: without it, the kernel would put a page of zeros into the
            // shared base.
            let fills_vm = handler.fills() == FilledPages::Vm;
            let faults = Faults::of(ram.host_address_of(0), ram.len(), handler);
            if faults.is_err() && fills_vm {
                // The handler may have the userfaultfd by now.
                ram.give_away();
            }
            let faults = faults?;
            ram.keep(faults, pages.as_ref().map(|over| &*over.pages));
        }
        pages.iter().try_for_each(|pages| lay_over(ram, pages))?;
        ram.change_base(|under| *under = Some(base));
        step_done("memory map");
        Ok(())
    }
}

/// Maps long runs of pages, and copies short ones.
fn lay_over(ram: &GuestRam, OverlayPages { pages, file }: &OverlayPages) -> Result<()> {
    // A run in the middle of a mapping splits that in two.
    let mut left = MOST_MAPPINGS / 2;
    for run in pages.page_ranges() {
        if run.end - run.start >= WORTH_MAPPING && left > 0 {
            left -= 1;
            // A run may continue into the next region: their offsets are adjacent.
            map(ram, run, file, MapFlags::PRIVATE)?;
        } else {
            copy_over(ram, run, file).map_err(|source| Error::host("read pages of guest memory", source))?;
        }
    }
    Ok(())
}

/// Copies pages from a file over the mapped ones.
fn copy_over(ram: &GuestRam, run: Range<u64>, file: &File) -> io::Result<()> {
    let Some(faults) = ram.faults() else { return ram.copy_from(run, file) };
    // Writing to a page that the base lacks would first fetch it, so an empty page is placed instead.
    let mut bytes = vec![0; (WORTH_MAPPING.min(run.end - run.start)) as usize];
    for start in run.clone().step_by(bytes.len()) {
        let part = &mut bytes[..(run.end - start).min(WORTH_MAPPING) as usize];
        file.read_exact_at(part, start)?;
        faults.userfault().copy(faults.start() + start, part)?;
    }
    Ok(())
}

/// Maps `base` over a part of memory, at the same offsets. Excluded from forked processes and from core
/// dumps.
pub(super) fn map(ram: &GuestRam, range: Range<u64>, base: &File, sharing: MapFlags) -> Result<()> {
    let len = range.end - range.start;
    map_with(ram, range, base, MapFlags::NORESERVE | sharing)
        .map_err(|errno| Error::host(format!("map {} KiB of guest memory", len >> 10), errno))
}

/// As [`map`], of a file in huge pages. Reserves them: without that, a guest whose touch finds the host's
/// pool empty would end.
pub(super) fn map_huge(ram: &GuestRam, range: Range<u64>, base: &File, sharing: MapFlags) -> Result<()> {
    let len = range.end - range.start;
    map_with(ram, range, base, sharing).map_err(|errno| lacks_huge_pages(len, errno))
}

fn map_with(ram: &GuestRam, range: Range<u64>, base: &File, flags: MapFlags) -> rustix::io::Result<()> {
    let (start, len) = (ram.host_address_of(range.start), (range.end - range.start) as usize);
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::FIXED | flags;
    // SAFETY: the range is part of the one that `ram` reserved for this purpose, so nothing else is replaced.
    unsafe { rustix::mm::mmap(start.cast(), len, access, flags, base, range.start) }?;
    leave_out(start, len)
}

/// Excludes mapped memory from forked processes and from core dumps.
fn leave_out(start: *mut u8, len: usize) -> rustix::io::Result<()> {
    for advice in [Advice::LinuxDontFork, Advice::LinuxDontDump] {
        // SAFETY: this advice affects only forked processes and core dumps.
        unsafe { rustix::mm::madvise(start.cast(), len, advice) }?;
    }
    Ok(())
}

/// Maps memory of zeros over a part of guest memory, in huge pages if the host's policy allows. Excluded as
/// that of [`map`].
pub(super) fn map_anonymous(ram: &GuestRam, range: Range<u64>) -> Result<()> {
    let (start, len) = (ram.host_address_of(range.start), (range.end - range.start) as usize);
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::FIXED | MapFlags::NORESERVE | MapFlags::PRIVATE;
    // SAFETY: as in `map_with`.
    let mapped = unsafe { rustix::mm::mmap_anonymous(start.cast(), len, access, flags) };
    mapped
        .and_then(|_| leave_out(start, len))
        .map_err(|errno| Error::host(format!("map {} KiB of guest memory", len >> 10), errno))?;
    // SAFETY: advice about a mapping does not change its content. A kernel without huge pages refuses it,
    // which does no harm.
    let _ = unsafe { rustix::mm::madvise(start.cast(), len, Advice::LinuxHugepage) };
    Ok(())
}

/// A booting kernel touches its memory page by page, and each touch is an exit; with huge pages it touches
/// hundreds of pages at once. The host's policy decides (/sys/kernel/mm/transparent_hugepage/shmem_enabled:
/// `advise` suffices, most hosts have `never`).
pub fn prefer_huge_pages(ram: &GuestRam) {
    // SAFETY: advice about a mapping does not change its content. A kernel without huge pages refuses it,
    // which does no harm.
    let _ = unsafe {
        rustix::mm::madvise(ram.host_address_of(0).cast(), ram.len() as usize, Advice::LinuxHugepage)
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use vm_memory::{Bytes, GuestAddress};

    #[test]
    fn writes_to_a_private_backing_stay_out_of_the_base() {
        let first = GuestRam::reserve(8 << 20).unwrap();
        Backing::Fresh.map(&first).unwrap();
        let base = first.base();
        first.guest().write_obj(7u64, GuestAddress(0x5000)).unwrap();

        let clones = [0, 1].map(|_| {
            let ram = GuestRam::reserve(8 << 20).unwrap();
            Backing::Private { base: Arc::clone(&base.file), pages: None }.map(&ram).unwrap();
            ram
        });
        clones[0].guest().write_obj(8u64, GuestAddress(0x5000)).unwrap();
        let read = |ram: &GuestRam| ram.guest().read_obj::<u64>(GuestAddress(0x5000)).unwrap();
        assert_eq!((read(&first), read(&clones[0]), read(&clones[1])), (7, 8, 7));
    }
}

#[cfg(test)]
#[path = "mapping_tests.rs"]
mod mapping_tests;
