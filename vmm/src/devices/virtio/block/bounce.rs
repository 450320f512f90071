//! Reads past the page cache through memory of the VMM.
//!
//! The kernel holds the pages of a direct read until it is done. If guest memory is frozen meanwhile
//! ([`crate::memory::dirty::freeze`]), the guest continues with a copy of such a page, and data that arrives
//! later is lost in the base. A page that is private already stays where it is, so only memory that has not
//! been frozen needs this. A direct write reads from the pages that it holds: the base's, which do not
//! change any more, so it loses nothing.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;

use rustix::fs::{OFlags, fcntl_getfl, fstatfs};

/// Bytes of one transfer at most.
pub const MAX_TRANSFER: usize = 1 << 20;

/// Magic numbers (linux/magic.h) of file systems that copy through the page cache unless O_DIRECT is set.
/// Others, FUSE and 9p among them, may hold pages whatever the flags are.
const COPYING: [u64; 8] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683e, // Btrfs
    0x0102_1994, // tmpfs, and devtmpfs where block devices are
    0xf2f5_2010, // F2FS
    0xe0f5_e1e2, // EROFS
    0x7371_7368, // SquashFS
    0x8584_58f6, // ramfs
];

/// Returns whether the kernel may hold the pages of a transfer to or from a file.
///
/// # Errors
/// The host does not report the file's flags or file system.
pub fn may_hold_pages(file: &File) -> io::Result<bool> {
    if fcntl_getfl(file)?.contains(OFlags::DIRECT) {
        return Ok(true);
    }
    Ok(!COPYING.contains(&(fstatfs(file)?.f_type as u64)))
}

/// A page with the alignment that direct I/O needs.
#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct AlignedPage([u8; 4096]);

/// Memory for one transfer.
pub struct BounceBuffer(Vec<AlignedPage>);

impl BounceBuffer {
    /// Allocates room for `len` bytes.
    pub fn new(len: usize) -> Self {
        Self(vec![AlignedPage([0; 4096]); len.div_ceil(4096)])
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        let len = self.0.len() * 4096;
        // SAFETY: pages are plain bytes, side by side.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), len) }
    }
}

/// Copies all of `from` to `pieces`, from their byte `skip` on.
///
/// # Safety
/// The pieces can be written and have room for it.
pub unsafe fn scatter(from: &[u8], pieces: &[libc::iovec], skip: usize) {
    // SAFETY: as the caller promises; `from` is the VMM's own memory, so the two do not overlap.
    each(pieces, skip, from.len(), |piece, at, len| unsafe {
        std::ptr::copy_nonoverlapping(from[at..at + len].as_ptr(), piece, len);
    });
}

/// Calls `act` for each contiguous part of `pieces` with its address, its offset after `skip`, and its
/// length.
fn each(pieces: &[libc::iovec], mut skip: usize, len: usize, mut act: impl FnMut(*mut u8, usize, usize)) {
    let mut done = 0;
    for piece in pieces {
        let from = skip.min(piece.iov_len);
        skip -= from;
        let count = (piece.iov_len - from).min(len - done);
        if count > 0 {
            act(piece.iov_base.cast::<u8>().wrapping_add(from), done, count);
            done += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_filled_from_any_byte_on() {
        for (skip, from, right) in
            [(0, &b"1234567"[..], b"1234567"), (2, b"12", b"ab12efg"), (5, b"12", b"abcde12")]
        {
            let (mut first, mut second) = (*b"abc", *b"defg");
            let iovec =
                |piece: &mut [u8]| libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: piece.len() };
            let pieces = [iovec(&mut first), iovec(&mut second)];
            // SAFETY: both arrays are alive, and no shorter than the copied bytes.
            unsafe { scatter(from, &pieces, skip) };
            assert_eq!([&first[..], &second].concat(), right);
        }
    }

    #[test]
    fn file_of_a_known_file_system_is_copied_and_one_of_an_unknown_is_not() {
        let memfd = rustix::fs::memfd_create("copied", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        assert!(!may_hold_pages(&memfd.into()).unwrap());
        assert!(may_hold_pages(&File::open("/proc/self/status").unwrap()).unwrap());
    }
}
