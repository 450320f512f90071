//! The reserved host range that guest RAM lives in, and the guest's view of it.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use vm_memory::bitmap::Bitmap;
use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestRegionMmap};
use volt_kernel::layout::ram_ranges;

use super::PAGE;
use crate::memory::base::Base;
use crate::memory::files::lease::name_of;
use crate::memory::lazy::faults::Faults;
use crate::memory::lazy::presence::Presence;
use crate::memory::own_writes::{GuestMemory, OwnWrites};
use crate::memory::page_set::PageSet;
use crate::memory::range::{AddressRange, Region};

use crate::error::{Error, Result};
use crate::sync::lock;

/// A guest may be promised more than the host has, for few touch all of theirs. But KVM allocates for every page of a
/// slot at once, up to 0.25 % of it: past this factor the promise alone would eat the host.
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

/// A huge page. KVM maps one in one piece only where host and guest address agree modulo this.
const HUGE: usize = 2 << 20;

/// An address range that nothing else in the process gets, and that holds nothing until something is mapped over it.
#[derive(Debug)]
struct Reservation {
    /// Aligned to [`HUGE`].
    start: *mut u8,
    len: usize,
    /// What was reserved for it, with the rest that the alignment leaves over. Taken when this is dropped.
    all: Option<AddressRange>,
    /// Where what is mapped is filled as it is needed. Goes after the mapping, for the reason that [`Faults::userfault`] names.
    faults: OnceLock<Arc<Faults>>,
}

// SAFETY: as that of the range that it owns.
unsafe impl Send for Reservation {}
// SAFETY: as above.
unsafe impl Sync for Reservation {}

impl Reservation {
    fn new(len: u64) -> Result<Self> {
        let refused = |source| {
            Error::host(format!("reserve {} MiB of address space for guest memory", len >> 20), source)
        };
        let len = usize::try_from(len).map_err(|_| refused(rustix::io::Errno::NOMEM))?;
        let more = len.checked_add(HUGE).ok_or_else(|| refused(rustix::io::Errno::NOMEM))?;
        let all = AddressRange::reserve(more).map_err(refused)?;
        let start = all.start.map_addr(|address| address.next_multiple_of(HUGE));
        Ok(Self { start, len, all: Some(all), faults: OnceLock::new() })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // The service of page faults ends first: a zero-fill that came late would land in another VM's
        // memory.
        if let (Some(faults), Some(range)) = (self.faults.get(), self.all.take()) {
            faults.end(range);
        }
    }
}

/// A guest's RAM. Cloning shares it.
#[derive(Clone, Debug)]
pub struct GuestRam {
    regions: Arc<[Region]>,
    guest: GuestMemory,
    /// Read while something is done that depends on it, so that it does not change meanwhile.
    base: Arc<RwLock<Option<Base>>>,
    /// Pages that the guest gave back to the host.
    given: Arc<OnceLock<Mutex<PageSet>>>,
    // Last: the regions above point into it.
    reservation: Arc<Reservation>,
}

impl GuestRam {
    /// Reserves address space for `bytes` of guest memory. Nothing is mapped yet.
    ///
    /// # Errors
    /// The host has no such range free, or is far too small for that much.
    pub fn reserve(bytes: u64) -> Result<Self> {
        check_overcommit(bytes, host_memory())?;
        let reservation = Reservation::new(bytes)?;
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
            // SAFETY: the region lies in the reservation, which outlives the returned object's regions; it stays
            // mapped, and `Backing::map` makes it readable and writable before anyone has the object to access it.
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

    /// The stretches of guest physical memory, in order.
    #[must_use]
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Bytes in all.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.reservation.len as u64
    }

    /// The memory as the guest addresses it.
    #[must_use]
    pub fn guest(&self) -> &GuestMemory {
        &self.guest
    }

    /// The name of the file that lies under it, for errors.
    #[must_use]
    pub fn file_name(&self) -> PathBuf {
        self.with_base(|base| name_of(&base.file))
    }

    /// Whether the file that lies under it has become too short.
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        self.with_base(|base| base.file.metadata().is_ok_and(|metadata| metadata.len() < self.len()))
    }

    /// What lies under it.
    #[must_use]
    pub fn base(&self) -> Base {
        self.with_base(Base::clone)
    }

    /// Does something that depends on what lies under it, which stays as it is meanwhile.
    ///
    /// # Panics
    /// When nothing was mapped yet, which comes before all else that is done with it.
    pub fn with_base<T>(&self, act: impl FnOnce(&Base) -> T) -> T {
        let base = self.base.read().unwrap_or_else(PoisonError::into_inner);
        act(base.as_ref().expect("memory is mapped first"))
    }

    /// Maps something else over it.
    pub(super) fn change_base<T>(&self, change: impl FnOnce(&mut Option<Base>) -> T) -> T {
        change(&mut self.base.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Its page faults, where it is filled as it is needed.
    #[must_use]
    pub fn faults(&self) -> Option<&Arc<Faults>> {
        self.reservation.faults.get()
    }

    /// Keeps what answers its page faults until after nothing is mapped any more, and has devices ask for
    /// pages before they touch them, but for those that lie `over` the base. A RAM is mapped once.
    pub(super) fn keep(&self, faults: Arc<Faults>, over: Option<&PageSet>) {
        let presence = Arc::new(Presence::new(&self.regions, &faults, over));
        self.guest.iter().for_each(|region| region.bitmap().ask_for(&presence));
        self.reservation.faults.set(faults).expect("memory is mapped once");
    }

    /// From now on [`GuestRam::take_own_writes`] knows what this process writes to it.
    pub fn watch_own_writes(&self) {
        self.guest.iter().for_each(|region| region.bitmap().begin());
    }

    /// Adds the pages that this process wrote since it was asked last.
    pub fn take_own_writes(&self, to: &mut PageSet) {
        for (region, view) in self.regions.iter().zip(self.guest.iter()) {
            to.add_words(region.offset, view.bitmap().take());
        }
    }

    /// This process changed memory in another way than through [`GuestRam::guest`]. Afterwards, as `writes` has it.
    pub fn mark_written(&self, gpa: u64, len: u64) {
        if let Some((view, at)) = self.guest.to_region_addr(GuestAddress(gpa)) {
            view.bitmap().mark_dirty(at.0 as usize, len as usize);
        }
    }

    /// The guest has given these pages back, which are private.
    pub(super) fn has_given(&self, range: Range<u64>) {
        let given = self.given.get_or_init(|| Mutex::new(PageSet::none(self.len())));
        lock(given).add(range);
    }

    /// The pages that the guest has given back since [`GuestRam::forget_given`]: what is in one does not matter to it, unless it has
    /// written to it since.
    #[must_use]
    pub fn given(&self) -> PageSet {
        self.given.get().map_or_else(|| PageSet::none(self.len()), |given| lock(given).clone())
    }

    /// What is in the pages that the guest gave back matters again.
    pub(super) fn forget_given(&self) {
        self.given.get().into_iter().for_each(|given| *lock(given) = PageSet::none(self.len()));
    }

    /// Whether a guest physical address is RAM.
    #[must_use]
    pub fn contains(&self, gpa: u64) -> bool {
        self.regions.iter().any(|region| (region.gpa..region.gpa + region.len).contains(&gpa))
    }

    /// Whether the page of a guest physical address can be read. It is read, and memory that is filled as it
    /// is needed must not be asked about: the call waits for the page there.
    #[must_use]
    pub fn is_readable(&self, gpa: u64) -> bool {
        let Some((region, at)) = self.guest.to_region_addr(GuestAddress(gpa)) else { return false };
        let mut byte = 0_u8;
        let to = libc::iovec { iov_base: ptr::from_mut(&mut byte).cast(), iov_len: 1 };
        let from = libc::iovec { iov_base: region.as_ptr().wrapping_add(at.0 as usize).cast(), iov_len: 1 };
        // SAFETY: the kernel writes a byte to `byte`, and answers EFAULT where it cannot read the other one.
        let read = unsafe { libc::process_vm_readv(libc::getpid(), &raw const to, 1, &raw const from, 1, 0) };
        // Any other error comes from a host that forbids the call: it tells nothing.
        read == 1 || io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
    }

    /// Where a region lies in this process. What is there belongs to the guest.
    #[must_use]
    pub fn host_address(&self, region: &Region) -> *mut u8 {
        self.host_address_of(region.offset)
    }

    /// Copies a range of offsets to a file that has the same. Whoever may write to them goes on.
    ///
    /// # Errors
    /// The file system refuses, or a page cannot be read.
    pub fn copy_to(&self, mut range: Range<u64>, to: &File) -> io::Result<()> {
        while range.start < range.end {
            let start = self.host_address_of(range.start).cast();
            let len = (range.end - range.start) as usize;
            // SAFETY: the kernel reads from the reservation, and where that cannot be read it says so.
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

    /// Copies ranges of offsets to a file, one behind the other from its start on, with one system call if the
    /// kernel takes them at once. Whoever may write to them goes on.
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
            // SAFETY: the kernel reads from the reservation, and where that cannot be read it says so.
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

    /// A page's content. Whoever may write to it goes on.
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

    /// Fills a range of offsets from a file, where it has the same. Nobody else uses them yet.
    pub(crate) fn copy_from(&self, range: Range<u64>, file: &File) -> io::Result<()> {
        let mut at = range.start;
        while at < range.end {
            let (start, len) = (self.host_address_of(at).cast(), (range.end - at) as usize);
            // SAFETY: the kernel writes to the reservation, where nobody has Rust references to.
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

    /// Which guest physical address an address of this process is.
    #[must_use]
    pub fn guest_address(&self, host: u64) -> Option<u64> {
        self.regions.iter().find_map(|region| {
            let within = host.checked_sub(self.host_address(region) as u64)?;
            (within < region.len).then_some(region.gpa + within)
        })
    }

    /// Where the byte at an offset lies in this process.
    ///
    /// # Panics
    /// The offset is beyond the end.
    #[must_use]
    pub fn host_address_of(&self, offset: u64) -> *mut u8 {
        assert!(offset <= self.len(), "{offset:#x} is beyond {:#x} bytes of memory", self.len());
        // SAFETY: it lies in the reservation, or at its end.
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
    fn memory_above_3_gib_goes_on_at_4_gib() {
        let ram = GuestRam::reserve(5 << 30).unwrap();
        let expected = [
            Region { gpa: 0, len: 3 << 30, offset: 0 },
            Region { gpa: 4 << 30, len: 2 << 30, offset: 3 << 30 },
        ];
        assert_eq!(ram.regions(), expected);
        assert!(ram.contains(0) && ram.contains((3 << 30) - 1) && ram.contains(4 << 30));
        assert!(!ram.contains(3 << 30) && !ram.contains((4 << 30) - 1) && !ram.contains(6 << 30));
    }

    #[test]
    fn more_than_the_host_can_map_is_an_error_that_says_how_much() {
        let error = GuestRam::reserve(1 << 60).unwrap_err().to_string();
        assert!(error.starts_with("memory: 1099511627776 MiB asked for"), "{error}");
        let error = Reservation::new(1 << 60).unwrap_err().to_string();
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
