//! The reserved host range of guest RAM, and the guest's view of it.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use vm_memory::bitmap::Bitmap;
use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestRegionMmap};
use volt_kernel::layout::ram_ranges;

use super::PAGE;
use crate::memory::base::{Base, PageSize};
use crate::memory::files::data::data_ranges;
use crate::memory::files::lease::name_of;
use crate::memory::lazy::faults::{Faults, FilledPages};
use crate::memory::lazy::presence::Presence;
use crate::memory::own_writes::{GuestMemory, OwnWrites};
use crate::memory::page_set::PageSet;
use crate::memory::range::{AddressRange, Region};

use crate::error::{Error, Result};
use crate::sync::lock;

/// The most guest memory, as a multiple of the host's. Few guests touch all of their memory, but KVM
/// allocates up to 0.25 % of a slot at once. Beyond this factor, these allocations alone would exhaust the
/// host.
const MOST_OVERCOMMIT: u64 = 16;

fn host_memory() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(info.mem_unit.into())
}

fn check_overcommit(bytes: u64, host: u64) -> Result<()> {
    if bytes <= host.saturating_mul(MOST_OVERCOMMIT) {
        return Ok(());
    }
    let (asked, host) = (bytes >> 20, host >> 20);
    Err(Error::config(
        "memory",
        format!("{asked} MiB asked for, which is more than {MOST_OVERCOMMIT} times this host's {host} MiB"),
    ))
}

/// Bytes of a huge page. KVM maps one in one piece only if host and guest address are equal modulo this.
const HUGE: usize = 2 << 20;

/// A reserved address range, empty until memory is mapped over it.
#[derive(Debug)]
struct RamReservation {
    /// Aligned to [`HUGE`].
    start: *mut u8,
    len: usize,
    /// The whole reservation, with the rest that alignment leaves. Taken on drop.
    all: Option<AddressRange>,
    /// The page faults of memory that they fill. Dropped after the mapping, for the reason that
    /// [`Faults::userfault`] names.
    faults: OnceLock<Arc<Faults>>,
    /// Another process may still fill memory at these addresses, so that they are not used again.
    is_given_away: AtomicBool,
}

// SAFETY: as for the range that it owns.
unsafe impl Send for RamReservation {}
// SAFETY: as above.
unsafe impl Sync for RamReservation {}

impl RamReservation {
    fn new(len: u64) -> Result<Self> {
        let refused = |source| {
            Error::host(format!("reserve {} MiB of address space for guest memory", len >> 20), source)
        };
        let len = usize::try_from(len).map_err(|_| refused(rustix::io::Errno::NOMEM))?;
        let more = len.checked_add(HUGE).ok_or_else(|| refused(rustix::io::Errno::NOMEM))?;
        let all = AddressRange::reserve(more).map_err(refused)?;
        let start = all.start.map_addr(|address| address.next_multiple_of(HUGE));
        Ok(Self {
            start,
            len,
            all: Some(all),
            faults: OnceLock::new(),
            is_given_away: AtomicBool::new(false),
        })
    }
}

impl Drop for RamReservation {
    fn drop(&mut self) {
        // The service of page faults ends first: a late zero-fill would land in another VM's memory.
        if let (Some(faults), Some(range)) = (self.faults.get(), self.all.take()) {
            faults.end(range);
        }
        if self.is_given_away.load(Ordering::Relaxed)
            && let Some(range) = self.all.take()
        {
            let _ = range.vacate();
            std::mem::forget(range);
        }
    }
}

/// A guest's RAM. Cloning shares it.
#[derive(Clone, Debug)]
pub struct GuestRam {
    regions: Arc<[Region]>,
    guest: GuestMemory,
    /// The base, locked for reading while an act depends on it.
    base: Arc<RwLock<Option<Base>>>,
    /// Pages that the guest returned to the host.
    given: Arc<OnceLock<Mutex<PageSet>>>,
    // Dropped last: the regions point into it.
    reservation: Arc<RamReservation>,
}

impl GuestRam {
    /// Reserves address space for `bytes` of guest memory. Nothing is mapped yet.
    ///
    /// # Errors
    /// The host has no such range free, or far too little memory.
    pub fn reserve(bytes: u64) -> Result<Self> {
        check_overcommit(bytes, host_memory())?;
        let reservation = RamReservation::new(bytes)?;
        let mut offset = 0;
        let regions: Arc<[Region]> = ram_ranges(bytes)
            .into_iter()
            .map(|(gpa, len)| {
                let region = Region { gpa, len, offset };
                offset += len;
                region
            })
            .collect();
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_NORESERVE);
        let mapped = regions.iter().map(|region| {
            // SAFETY: the region lies in the reservation, which outlives the regions of the returned object.
            // It stays mapped, and `Backing::map` makes it readable and writable before the object is handed
            // out.
            let view = unsafe {
                let start = reservation.start.add(region.offset as usize);
                MmapRegionBuilder::new_with_bitmap(region.len as usize, OwnWrites::new(region.len))
                    .with_raw_mmap_pointer(start)
            };
            let view = view.with_mmap_prot(prot).with_mmap_flags(flags).build();
            let view = view.expect("the kernel's mappings are page-aligned");
            GuestRegionMmap::new(view, GuestAddress(region.gpa)).expect("regions end below 2^64")
        });
        let guest = GuestMemory::from_regions(mapped.collect()).expect("regions are in order and apart");
        Ok(Self {
            regions,
            guest,
            base: Arc::default(),
            given: Arc::default(),
            reservation: Arc::new(reservation),
        })
    }

    /// The regions of guest physical memory, in order.
    #[must_use]
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Bytes of RAM.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.reservation.len as u64
    }

    /// The memory by guest physical addresses.
    #[must_use]
    pub fn guest(&self) -> &GuestMemory {
        &self.guest
    }

    /// Name of the base file, for errors.
    #[must_use]
    pub fn file_name(&self) -> PathBuf {
        self.with_base(|base| name_of(&base.file))
    }

    /// Whether the base file was truncated.
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        self.with_base(|base| base.file.metadata().is_ok_and(|metadata| metadata.len() < self.len()))
    }

    /// The base.
    #[must_use]
    pub fn base(&self) -> Base {
        self.with_base(Base::clone)
    }

    /// Whether its pages are huge, so that its base is never frozen ([`Base::page_size`]).
    #[must_use]
    pub fn is_huge(&self) -> bool {
        self.with_base(|base| base.page_size == PageSize::Huge)
    }

    /// The ranges of data in the base below private pages, in whole pages. Memory in huge pages has none: all
    /// of its pages count as private.
    ///
    /// # Errors
    /// The file system cannot tell.
    pub fn data_of_base(&self) -> io::Result<Vec<Range<u64>>> {
        if self.is_huge() { Ok(Vec::new()) } else { data_ranges(&self.base().file, self.len()) }
    }

    /// Calls `act` with the base, which cannot change meanwhile.
    ///
    /// # Panics
    /// Nothing was mapped yet.
    pub fn with_base<T>(&self, act: impl FnOnce(&Base) -> T) -> T {
        let base = self.base.read().unwrap_or_else(PoisonError::into_inner);
        act(base.as_ref().expect("memory is mapped first"))
    }

    /// Replaces the mapping, and with it the base.
    pub(super) fn change_base<T>(&self, change: impl FnOnce(&mut Option<Base>) -> T) -> T {
        change(&mut self.base.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// The page faults that fill it, if it is filled on touch.
    #[must_use]
    pub fn faults(&self) -> Option<&Arc<Faults>> {
        self.reservation.faults.get()
    }

    /// The page faults whose service fills this VM's own pages, and not the base.
    #[must_use]
    pub fn own_faults(&self) -> Option<&Arc<Faults>> {
        self.faults().filter(|faults| faults.handler().fills() == FilledPages::Vm)
    }

    /// Keeps the addresses from being used again, because another process may still fill memory there.
    pub(super) fn give_away(&self) {
        self.reservation.is_given_away.store(true, Ordering::Relaxed);
    }

    /// Keeps the page faults until after the memory is unmapped. Devices ask for pages before they touch
    /// them, except for those that lie `over` the base. RAM is mapped once.
    pub(super) fn keep(&self, faults: Arc<Faults>, over: Option<&PageSet>) {
        let presence = Arc::new(Presence::new(&self.regions, &faults, over));
        self.guest.iter().for_each(|region| region.bitmap().ask_for(&presence));
        self.reservation.faults.set(faults).expect("memory is mapped once");
    }

    /// Starts recording this process's writes, for [`GuestRam::take_own_writes`].
    pub fn watch_own_writes(&self) {
        self.guest.iter().for_each(|region| region.bitmap().begin());
    }

    /// Adds the pages that this process wrote since the last call.
    pub fn take_own_writes(&self, to: &mut PageSet) {
        for (region, view) in self.regions.iter().zip(self.guest.iter()) {
            to.add_words(region.offset, view.bitmap().take());
        }
    }

    /// Records a change that did not go through [`GuestRam::guest`], after it was made.
    pub fn mark_written(&self, gpa: u64, len: u64) {
        if let Some((view, at)) = self.guest.to_region_addr(GuestAddress(gpa)) {
            view.bitmap().mark_dirty(at.0 as usize, len as usize);
        }
    }

    /// Records private pages that the guest returned to the host.
    pub(super) fn has_given(&self, range: Range<u64>) {
        let given = self.given.get_or_init(|| Mutex::new(PageSet::none(self.len())));
        lock(given).add(range);
    }

    /// Pages that the guest returned since [`GuestRam::forget_given`]. Their content does not matter to the
    /// guest, unless it wrote to them since.
    #[must_use]
    pub fn given(&self) -> PageSet {
        self.given.get().map_or_else(|| PageSet::none(self.len()), |given| lock(given).clone())
    }

    /// Forgets the returned pages: their content matters again.
    pub(super) fn forget_given(&self) {
        self.given.get().into_iter().for_each(|given| *lock(given) = PageSet::none(self.len()));
    }

    /// Whether a guest physical address is in RAM.
    #[must_use]
    pub fn contains(&self, gpa: u64) -> bool {
        self.regions.iter().any(|region| (region.gpa..region.gpa + region.len).contains(&gpa))
    }

    /// Whether the page at a guest physical address is readable, by reading it. Must not be called for memory
    /// that page faults fill: the call would wait for the page.
    #[must_use]
    pub fn is_readable(&self, gpa: u64) -> bool {
        let Some((region, at)) = self.guest.to_region_addr(GuestAddress(gpa)) else { return false };
        let mut byte = 0_u8;
        let to = libc::iovec { iov_base: ptr::from_mut(&mut byte).cast(), iov_len: 1 };
        let from = libc::iovec { iov_base: region.as_ptr().wrapping_add(at.0 as usize).cast(), iov_len: 1 };
        // SAFETY: the kernel writes a byte to `byte`, and reports EFAULT if it cannot read the other one.
        let read = unsafe { libc::process_vm_readv(libc::getpid(), &raw const to, 1, &raw const from, 1, 0) };
        // Any other error means that the host forbids the call, which tells nothing about the page.
        read == 1 || io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
    }

    /// Address of a region in this process. Its content belongs to the guest.
    #[must_use]
    pub fn host_address(&self, region: &Region) -> *mut u8 {
        self.host_address_of(region.offset)
    }

    /// Copies a range of offsets to the same range of a file. Other threads may write meanwhile.
    ///
    /// # Errors
    /// The file system refuses, or a page cannot be read.
    pub fn copy_to(&self, mut range: Range<u64>, to: &File) -> io::Result<()> {
        while range.start < range.end {
            let start = self.host_address_of(range.start).cast();
            let len = (range.end - range.start) as usize;
            // SAFETY: the kernel reads from the reservation, and reports what it cannot read.
            let done = unsafe { libc::pwrite(to.as_raw_fd(), start, len, range.start as libc::off_t) };
            match done {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                1.. => range.start += done.cast_unsigned() as u64,
                _ => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return Err(error),
                },
            }
        }
        Ok(())
    }

    /// Copies ranges of offsets to a file, one after another from its start, with one system call if the
    /// kernel takes them at once. Other threads may write meanwhile.
    ///
    /// # Errors
    /// The file system refuses, or a page cannot be read.
    pub fn append_to(&self, ranges: impl Iterator<Item = Range<u64>>, to: &File) -> io::Result<()> {
        let piece = |Range { start, end }| libc::iovec {
            iov_base: self.host_address_of(start).cast(),
            iov_len: (end - start) as usize,
        };
        let mut pieces: Vec<_> = ranges.map(piece).collect();
        let (mut next, mut at) = (0, 0);
        while next < pieces.len() {
            let some = &pieces[next..][..(pieces.len() - next).min(libc::UIO_MAXIOV as usize)];
            // SAFETY: the kernel reads from the reservation, and reports what it cannot read.
            let done = unsafe { libc::pwritev(to.as_raw_fd(), some.as_ptr(), some.len() as i32, at) };
            if done < 0 {
                match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => continue,
                    error => return Err(error),
                }
            }
            if done == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            at += done as libc::off_t;
            let mut done = done.cast_unsigned();
            while done > 0 {
                let piece = &mut pieces[next];
                let part = done.min(piece.iov_len);
                piece.iov_base = piece.iov_base.wrapping_byte_add(part);
                piece.iov_len -= part;
                done -= part;
                next += usize::from(piece.iov_len == 0);
            }
        }
        Ok(())
    }

    /// Content of a page. Other threads may write meanwhile.
    pub(super) fn read_page<'p>(
        &self,
        offset: u64,
        into: &'p mut [u8; PAGE as usize],
    ) -> io::Result<&'p [u8]> {
        let region =
            self.regions.iter().find(|region| (region.offset..region.offset + region.len).contains(&offset));
        let region = region.ok_or(io::ErrorKind::InvalidInput)?;
        let at = GuestAddress(region.gpa + offset - region.offset);
        self.guest.read_slice(into, at).map_err(io::Error::other)?;
        Ok(into)
    }

    /// Fills a range of offsets from the same range of a file. Nothing else uses it yet.
    pub(crate) fn copy_from(&self, range: Range<u64>, file: &File) -> io::Result<()> {
        let mut at = range.start;
        while at < range.end {
            let (start, len) = (self.host_address_of(at).cast(), (range.end - at) as usize);
            // SAFETY: the kernel writes to the reservation, into which no Rust reference points.
            match unsafe { libc::pread(file.as_raw_fd(), start, len, at as libc::off_t) } {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                done @ 1.. => at += done.cast_unsigned() as u64,
                _ => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return Err(error),
                },
            }
        }
        Ok(())
    }

    /// The guest physical address of an address of this process.
    #[must_use]
    pub fn guest_address(&self, host: u64) -> Option<u64> {
        self.regions.iter().find_map(|region| {
            let within = host.checked_sub(self.host_address(region) as u64)?;
            (within < region.len).then_some(region.gpa + within)
        })
    }

    /// The guest physical addresses of a range of offsets, one range for each region that it meets.
    pub fn guest_addresses(&self, of: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
        self.regions.iter().filter_map(move |region| {
            let start = of.start.max(region.offset);
            let end = of.end.min(region.offset + region.len);
            let at = |offset: u64| region.gpa + (offset - region.offset);
            (start < end).then(|| at(start)..at(end))
        })
    }

    /// Address in this process of the byte at an offset.
    ///
    /// # Panics
    /// The offset is beyond the end.
    #[must_use]
    pub fn host_address_of(&self, offset: u64) -> *mut u8 {
        assert!(offset <= self.len(), "{offset:#x} is beyond {:#x} bytes of memory", self.len());
        // SAFETY: the address lies in the reservation, or at its end.
        unsafe { self.reservation.start.add(offset as usize) }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::super::PAGE;
    use super::super::backing::Backing;
    use super::*;
    use crate::memory::files::memfd::fresh;

    #[test]
    fn memory_above_3_gib_continues_at_4_gib() {
        let ram = GuestRam::reserve(5 << 30).unwrap();
        let expected = [
            Region { gpa: 0, len: 3 << 30, offset: 0 },
            Region { gpa: 4 << 30, len: 2 << 30, offset: 3 << 30 },
        ];
        assert_eq!(ram.regions(), expected);
        assert!(ram.contains(0) && ram.contains((3 << 30) - 1) && ram.contains(4 << 30));
        assert!(!ram.contains(3 << 30) && !ram.contains((4 << 30) - 1) && !ram.contains(6 << 30));
        let addresses = |range| ram.guest_addresses(&range).collect::<Vec<_>>();
        assert_eq!(addresses(PAGE..2 * PAGE), vec![PAGE..2 * PAGE; 1]);
        let over = (3 << 30) - PAGE..(3 << 30) + PAGE;
        assert_eq!(addresses(over), [(3 << 30) - PAGE..3 << 30, 4 << 30..(4 << 30) + PAGE]);
    }

    #[test]
    fn memory_beyond_the_hosts_limit_is_refused_with_its_size() {
        let error = GuestRam::reserve(1 << 60).unwrap_err().to_string();
        assert!(error.starts_with("memory: 1099511627776 MiB asked for"), "{error}");
        let error = RamReservation::new(1 << 60).unwrap_err().to_string();
        assert_eq!(error, "cannot reserve 1099511627776 MiB of address space for guest memory");
        check_overcommit(16 << 30, 1 << 30).unwrap();
        check_overcommit((16 << 30) + 1, 1 << 30).unwrap_err();
    }

    #[test]
    fn ranges_are_appended_however_many_there_are() {
        let ram = GuestRam::reserve(16 << 20).unwrap();
        Backing::Fresh.map(&ram).unwrap();
        let pages: Vec<u64> = (0..1500).map(|number| number * 2 * PAGE).collect();
        for page in &pages {
            ram.guest().write_obj(!page, GuestAddress(*page)).unwrap();
        }
        let to = fresh(pages.len() as u64 * PAGE).unwrap();
        ram.append_to(pages.iter().map(|page| *page..page + PAGE), &to).unwrap();
        for (number, page) in pages.iter().enumerate() {
            let mut bytes = [0; 8];
            to.read_exact_at(&mut bytes, number as u64 * PAGE).unwrap();
            assert_eq!(u64::from_le_bytes(bytes), !page);
        }
    }
}
