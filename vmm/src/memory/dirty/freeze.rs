//! Freezes guest memory in 2 MiB steps while the guest runs: remaps a memfd that was mapped shared as
//! private, and so makes it the immutable base. Every page written from then on is private.
//!
//! ```text
//!   memfd    [ base, only read ........ | guest writes here ......... ]     before a step
//!   mapped     private                    shared
//!                               private_to ──> + STEP                       after it
//! ```
//!
//! A step replaces its part of the mapping atomically: each write goes to the memfd before it, or to a
//! private page after it. A transfer that pins a page of the memfd, as direct I/O does, could still write to
//! the base later. Disks therefore pin no pages of memory that is not private yet (`block/bounce.rs`).
//!
//! A VM may then hold up to twice the memory that the guest touched: pages written from now on lie beside the
//! base.

use std::fs::File;
use std::io::ErrorKind;

use rustix::mm::MapFlags;

use crate::error::{Error, Result};
use crate::memory::backing::map;
use crate::memory::files::sealing;
use crate::memory::ram::GuestRam;
use crate::progress::Progress;

/// Bytes remapped at once. A vCPU that needs a page waits 0.4 ms at most.
const STEP: u64 = 2 << 20;

/// Freezes the rest of memory. Completes a base that page faults fill, because its holes would count as
/// zeros. Memory in huge pages is not frozen.
///
/// # Errors
/// A page is unavailable; or the host refuses, and memory that is not frozen stays as it was; or a transfer
/// pins pages, and the caller may try again; or [`Error::Cancelled`].
pub fn freeze(ram: &GuestRam, progress: &Progress) -> Result<()> {
    if ram.faults().is_some() {
        // All of it is private. The filler maps the base writable, so it cannot be sealed.
        return complete(ram, progress);
    }
    if ram.is_huge() {
        return Ok(());
    }
    for region in ram.regions() {
        let end = region.offset + region.len;
        let mut at = region.offset.max(ram.base().private_to);
        while at < end {
            let to = (at + STEP).min(end);
            ram.change_base(|base| {
                let base = base.as_mut().expect("memory is mapped first");
                map(ram, at..to, &base.file, MapFlags::PRIVATE)?;
                base.private_to = to;
                Ok::<_, Error>(())
            })?;
            at = to;
        }
    }
    seal(&ram.base().file)
}

/// Completes a base that page faults fill: from then on its holes are pages of zeros. Does nothing for other
/// bases.
///
/// # Errors
/// A page is unavailable, or [`Error::Cancelled`].
pub fn complete(ram: &GuestRam, progress: &Progress) -> Result<()> {
    ram.faults().map_or(Ok(()), |faults| faults.complete(progress))
}

/// Seals the memfd against writes. A file without seals, such as a snapshot's, is left as it is.
///
/// # Errors
/// A transfer pins its pages, a process maps it writable, or the host refuses.
pub fn seal(file: &File) -> Result<()> {
    sealing::seal(file).map_err(|source| {
        let why = if source.kind() == ErrorKind::ResourceBusy {
            ": a transfer to or from it is still under way"
        } else {
            ""
        };
        Error::host(format!("seal guest memory{why}"), source)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use rustix::io::Errno;
    use vm_memory::{Bytes, GuestAddress};

    use super::super::populated::private_pages;
    use super::*;
    use crate::memory::PAGE;
    use crate::memory::backing::Backing;
    use crate::memory::reclaim::give_back;

    const SIZE: u64 = 64 << 20;

    fn fresh() -> GuestRam {
        let ram = GuestRam::reserve(SIZE).unwrap();
        Backing::Fresh.map(&ram).unwrap();
        ram
    }

    /// The base through another descriptor.
    fn word_of_base(ram: &GuestRam, at: u64) -> u64 {
        use std::os::unix::fs::FileExt;
        let mut bytes = [0; 8];
        ram.base().file.read_exact_at(&mut bytes, at).unwrap();
        u64::from_le_bytes(bytes)
    }

    #[test]
    fn later_writes_stay_out_of_the_frozen_base() {
        let ram = fresh();
        let word = |at| ram.guest().read_obj::<u64>(GuestAddress(at)).unwrap();
        ram.guest().write_obj(7_u64, GuestAddress(0x5000)).unwrap();
        freeze(&ram, &Progress::default()).unwrap();
        freeze(&ram, &Progress::default()).unwrap();
        assert_eq!((word(0x5000), word_of_base(&ram, 0x5000)), (7, 7));
        ram.guest().write_obj(8_u64, GuestAddress(0x5000)).unwrap();
        ram.guest().write_obj(9_u64, GuestAddress(SIZE - 8)).unwrap();
        assert_eq!((word(0x5000), word_of_base(&ram, 0x5000), word(SIZE - 8)), (8, 7, 9));
        let private: Vec<_> = private_pages(&ram).unwrap().page_ranges().collect();
        assert_eq!(private, [0x5000..0x6000, SIZE - PAGE..SIZE]);
        let written = rustix::io::pwrite(&ram.base().file, b"x", 0);
        assert_eq!(written, Err(Errno::PERM), "the base is sealed");
        give_back(&ram, 0x5000, PAGE).unwrap();
        assert_eq!(word(0x5000), 7, "what is given back has the base's content");
    }

    /// Pins pages of the memory, as a transfer does.
    #[test]
    fn writable_base_is_refused_until_it_is_closed() {
        let (ram, other) = (fresh(), GuestRam::reserve(SIZE).unwrap());
        map(&other, 0..SIZE, &ram.base().file, MapFlags::SHARED).unwrap();
        for _ in 0..2 {
            let error = freeze(&ram, &Progress::default()).unwrap_err().to_string();
            assert_eq!(error, "cannot seal guest memory: a transfer to or from it is still under way");
        }
        drop(other);
        freeze(&ram, &Progress::default()).unwrap();
        assert_eq!(rustix::io::pwrite(&ram.base().file, b"x", 0), Err(Errno::PERM));
    }

    #[test]
    fn snapshot_file_is_not_sealed() {
        let of_tmpfs = rustix::fs::memfd_create("tmpfs", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        seal(&of_tmpfs.into()).unwrap();
        seal(&File::open("/proc/self/exe").unwrap()).unwrap();
    }

    /// Threads write during the freeze, each to its own words, and no write is lost.
    #[test]
    fn freeze_loses_no_write() {
        let (ram, stop) = (fresh(), AtomicBool::new(false));
        let last = thread::scope(|scope| {
            let writers = [0, 1].map(|number| {
                let (ram, stop) = (&ram, &stop);
                scope.spawn(move || {
                    let mut round = 0_u64;
                    while !stop.load(Ordering::Relaxed) {
                        round += 1;
                        for page in 0..SIZE / PAGE {
                            let at = GuestAddress(page * PAGE + number * 8);
                            let before: u64 = ram.guest().read_obj(at).unwrap();
                            assert_eq!(before, round - 1, "page {page}");
                            ram.guest().write_obj(round, at).unwrap();
                        }
                    }
                    round
                })
            });
            freeze(&ram, &Progress::default()).unwrap();
            stop.store(true, Ordering::Relaxed);
            writers.map(|writer| writer.join().unwrap())
        });
        for page in 0..SIZE / PAGE {
            for (number, round) in (0..).zip(last) {
                let word: u64 = ram.guest().read_obj(GuestAddress(page * PAGE + number * 8)).unwrap();
                assert_eq!(word, round, "page {page} of writer {number}");
            }
        }
    }
}
