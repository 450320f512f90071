//! How RAM fills: what is mapped over the reserved range. The one place that matches on [`Backing`].
#![allow(unsafe_code)]

use std::fs::File;
use std::sync::Arc;

use rustix::fs::MemfdFlags;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::ram::{GuestRam, Region};
use crate::error::{Error, Result};
use crate::timing::step_done;

/// What a guest's RAM is made of.
#[derive(Clone, Debug)]
pub enum Backing {
    /// Empty memory: a fresh memfd, mapped shared.
    Fresh,
    /// An immutable base, mapped private: the guest's writes stay its own.
    Private {
        /// The base, as long as guest memory is.
        base: Arc<File>,
    },
}

/// The file that lies under a mapped RAM, and whether the guest writes to it.
#[derive(Clone, Debug)]
pub struct Base {
    /// The file; guest memory at `Region::offset`.
    pub file: Arc<File>,
    /// Mapped private: pages that the guest wrote are not in the file.
    pub private: bool,
}

impl Backing {
    /// Maps itself over all of `ram`.
    ///
    /// # Errors
    /// The host refused the memory.
    pub fn map(self, ram: &GuestRam) -> Result<Base> {
        let base = match self {
            Self::Fresh => Base { file: Arc::new(fresh(ram.len())?), private: false },
            Self::Private { base } => Base { file: base, private: true },
        };
        let sharing = if base.private { MapFlags::PRIVATE } else { MapFlags::SHARED };
        for region in ram.regions() {
            // SAFETY: the region is part of the range that `ram` reserved for exactly this, so that nothing else is
            // replaced.
            unsafe {
                rustix::mm::mmap(
                    ram.host_address(region).cast(),
                    region.len as usize,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::FIXED | MapFlags::NORESERVE | sharing,
                    &base.file,
                    region.offset,
                )
            }
            .map_err(|source| Error::host(format!("map {} MiB of guest memory", region.len >> 20), source))?;
            if !base.private {
                prefer_huge_pages(ram, region);
            }
        }
        step_done("memory map");
        Ok(base)
    }
}

/// A kernel that boots touches its memory page by page, and each is an exit: in huge pages it touches hundreds at once. The
/// host's policy decides (/sys/kernel/mm/transparent_hugepage/shmem_enabled: `advise` is enough, `never` is most hosts').
fn prefer_huge_pages(ram: &GuestRam, region: &Region) {
    // SAFETY: advice about a mapping that was just made changes nothing that can be seen in it. A kernel without huge pages
    // refuses it, and that is as well.
    let _ = unsafe {
        rustix::mm::madvise(ram.host_address(region).cast(), region.len as usize, Advice::LinuxHugepage)
    };
}

/// Memory in a file without a name: nothing yet, `len` bytes long.
///
/// # Errors
/// The host refuses it.
pub fn fresh(len: u64) -> Result<File> {
    let refused = |source| Error::host(format!("create {} MiB of guest memory", len >> 20), source);
    let memfd = rustix::fs::memfd_create("volt-ram", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(refused)?;
    rustix::fs::ftruncate(&memfd, len).map_err(refused)?;
    Ok(memfd.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use vm_memory::{Bytes, GuestAddress};

    #[test]
    fn writes_to_a_private_backing_stay_out_of_the_base() {
        let first = GuestRam::reserve(8 << 20).unwrap();
        let base = Backing::Fresh.map(&first).unwrap();
        first.guest().write_obj(7u64, GuestAddress(0x5000)).unwrap();

        let clones = [0, 1].map(|_| {
            let ram = GuestRam::reserve(8 << 20).unwrap();
            Backing::Private { base: Arc::clone(&base.file) }.map(&ram).unwrap();
            ram
        });
        clones[0].guest().write_obj(8u64, GuestAddress(0x5000)).unwrap();
        let read = |ram: &GuestRam| ram.guest().read_obj::<u64>(GuestAddress(0x5000)).unwrap();
        assert_eq!((read(&first), read(&clones[0]), read(&clones[1])), (7, 8, 7));
    }
}
