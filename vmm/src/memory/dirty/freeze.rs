//! Freezing guest memory while the guest runs: what was mapped shared over a memfd is mapped private over it, step by step, and
//! becomes the immutable base. From then on every page that is written is a private one.
//!
//! ```text
//!   memfd    [ base, only read ........ | guest writes here ......... ]     before a step
//!   mapped     private                    shared
//!                               private_to ──> + STEP                       after it
//! ```
//!
//! A step replaces the mapping at once: a thread that writes, the guest's or this process's, writes before it to the memfd or
//! after it to a page of its own. A transfer that holds a page of the memfd, as direct I/O does, could write to the base afterwards.
//! The device of a disk therefore lets no transfer hold pages of memory that is not private yet (`block/bounce.rs`).
//!
//! The memory that is held can come to twice what the guest has touched: what it writes from now on is there beside the base.

use std::fs::File;
use std::io::ErrorKind;

use rustix::mm::MapFlags;

use crate::error::{Error, Result};
use crate::memory::backing::map;
use crate::memory::files::sealing;
use crate::memory::ram::GuestRam;

/// Bytes mapped at once. 0.4 ms at the most for each, as long as a vCPU that wants a page waits.
const STEP: u64 = 2 << 20;

/// Freezes all that is not yet. A base that is filled as it is needed is filled: what is missing would be taken for zeros.
///
/// # Errors
/// A page cannot be had. The host refuses: the memory that is not frozen yet is as before. Somebody holds pages of the memory: it can
/// be tried again.
pub fn freeze(ram: &GuestRam) -> Result<()> {
    if ram.faults().is_some() {
        // All of it is private. Whoever fills the base has it mapped to write to, so it is not sealed.
        return complete(ram);
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

/// Fills a base that is filled as it is needed: from then on a hole is a page of zeros. Another base is
/// complete.
///
/// # Errors
/// A page cannot be had.
pub fn complete(ram: &GuestRam) -> Result<()> {
    ram.faults().map_or(Ok(()), |faults| faults.complete())
}

/// Nobody writes to this memory any more, whoever has its descriptor. A file that has no seals, which a snapshot's is, is left as it is.
///
/// # Errors
/// Somebody holds pages of it or has it mapped to write to it, or the host refuses.
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

    /// The base as somebody else sees it.
    fn word_of_base(ram: &GuestRam, at: u64) -> u64 {
        use std::os::unix::fs::FileExt;
        let mut bytes = [0; 8];
        ram.base().file.read_exact_at(&mut bytes, at).unwrap();
        u64::from_le_bytes(bytes)
    }

    #[test]
    fn what_was_written_is_the_base_and_what_is_written_stays_out_of_it() {
        let ram = fresh();
        let word = |at| ram.guest().read_obj::<u64>(GuestAddress(at)).unwrap();
        ram.guest().write_obj(7_u64, GuestAddress(0x5000)).unwrap();
        freeze(&ram).unwrap();
        freeze(&ram).unwrap();
        assert_eq!((word(0x5000), word_of_base(&ram, 0x5000)), (7, 7));
        ram.guest().write_obj(8_u64, GuestAddress(0x5000)).unwrap();
        ram.guest().write_obj(9_u64, GuestAddress(SIZE - 8)).unwrap();
        assert_eq!((word(0x5000), word_of_base(&ram, 0x5000), word(SIZE - 8)), (8, 7, 9));
        let private: Vec<_> = private_pages(&ram).unwrap().runs().collect();
        assert_eq!(private, [0x5000..0x6000, SIZE - PAGE..SIZE]);
        let written = rustix::io::pwrite(&ram.base().file, b"x", 0);
        assert_eq!(written, Err(Errno::PERM), "the base is sealed");
        give_back(&ram, 0x5000, PAGE).unwrap();
        assert_eq!(word(0x5000), 7, "what is given back has the base's content");
    }

    /// As a transfer would that still has pages of it.
    #[test]
    fn a_base_that_somebody_can_write_to_is_an_error_until_nobody_can() {
        let (ram, other) = (fresh(), GuestRam::reserve(SIZE).unwrap());
        map(&other, 0..SIZE, &ram.base().file, MapFlags::SHARED).unwrap();
        for _ in 0..2 {
            let error = freeze(&ram).unwrap_err().to_string();
            assert_eq!(error, "cannot seal guest memory: a transfer to or from it is still under way");
        }
        drop(other);
        freeze(&ram).unwrap();
        assert_eq!(rustix::io::pwrite(&ram.base().file, b"x", 0), Err(Errno::PERM));
    }

    #[test]
    fn a_file_of_a_snapshot_is_no_memory_to_be_sealed() {
        let of_tmpfs = rustix::fs::memfd_create("tmpfs", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        seal(&of_tmpfs.into()).unwrap();
        seal(&File::open("/proc/self/exe").unwrap()).unwrap();
    }

    /// Threads write all the while, each to words of its own, and in the end every one of them is there.
    #[test]
    fn no_write_is_lost_to_a_freeze() {
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
            freeze(&ram).unwrap();
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
