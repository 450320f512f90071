//! The memory of one frame for one vectored system call: pieces of guest memory, as the chain describes it,
//! and of the device, in order. Guest memory is neither copied nor read on the way.
#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::devices::virtio::chain::Buffers;

/// Pieces of one call at most (`UIO_MAXIOV`).
const MAX_PIECES: usize = 1024;

/// Pieces of memory for one call.
#[derive(Debug, Default)]
pub(super) struct Pieces<'a> {
    /// Each piece can be read and written during 'a.
    iovecs: Vec<libc::iovec>,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> Pieces<'a> {
    /// Makes an empty list with room for so many pieces.
    pub fn with_capacity(pieces: usize) -> Self {
        Self { iovecs: Vec::with_capacity(pieces), memory: PhantomData }
    }

    /// Appends memory of the device.
    pub fn push_own(&mut self, piece: &'a mut [u8]) {
        self.iovecs.push(iovec(piece));
    }

    /// Appends all of the guest memory, or nothing if `spare` more pieces would not fit. Returns whether it
    /// did.
    pub fn push_guest(&mut self, buffers: &Buffers<'a>, spare: usize) -> bool {
        buffers.add_to(&mut self.iovecs, MAX_PIECES - spare)
    }

    /// Replaces the first piece.
    pub fn with_first(mut self, piece: &'a mut [u8]) -> Self {
        self.iovecs[0] = iovec(piece);
        self
    }

    /// Returns the bytes of all pieces.
    pub fn len(&self) -> usize {
        self.iovecs.iter().map(|iovec| iovec.iov_len).sum()
    }

    /// Fills the pieces with one readv(2).
    pub fn read_from(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        // SAFETY: the pieces are writable while `self` lives. Nothing else in this process borrows them,
        // except as guest memory, which is only accessed as memory that changes at any time.
        let got = unsafe { libc::readv(fd.as_raw_fd(), self.iovecs.as_ptr(), self.count()) };
        usize::try_from(got).map_err(|_| io::Error::last_os_error())
    }

    /// Writes the pieces with one writev(2).
    pub fn write_to(&self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        // SAFETY: the pieces are readable while `self` lives.
        let got = unsafe { libc::writev(fd.as_raw_fd(), self.iovecs.as_ptr(), self.count()) };
        usize::try_from(got).map_err(|_| io::Error::last_os_error())
    }

    /// Copies the content of the pieces without the first `skip` bytes.
    pub fn copy_out(&self, mut skip: usize) -> Vec<u8> {
        let mut copy = Vec::with_capacity(self.len().saturating_sub(skip));
        for iovec in &self.iovecs {
            let from = skip.min(iovec.iov_len);
            skip -= from;
            let (at, len) = (copy.len(), iovec.iov_len - from);
            copy.resize(at + len, 0);
            // SAFETY: as for `write_to`; the copy has just been extended by `len`.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    iovec.iov_base.cast::<u8>().add(from),
                    &raw mut copy[at..] as *mut u8,
                    len,
                )
            };
        }
        copy
    }

    /// Fills the pieces from `parts` in order. Returns the bytes that fit.
    pub fn copy_in(&mut self, parts: &[&[u8]]) -> usize {
        let mut bytes = parts.iter().flat_map(|part| part.chunks(usize::MAX));
        let (mut part, mut done): (&[u8], _) = (&[], 0);
        for iovec in &self.iovecs {
            let mut at = 0;
            while at < iovec.iov_len {
                if part.is_empty() {
                    let Some(next) = bytes.next() else { return done };
                    part = next;
                }
                let (now, rest) = part.split_at(part.len().min(iovec.iov_len - at));
                // SAFETY: as for `read_from`; `now` is at most as long as the rest of the piece.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        now.as_ptr(),
                        iovec.iov_base.cast::<u8>().add(at),
                        now.len(),
                    )
                };
                (part, at, done) = (rest, at + now.len(), done + now.len());
            }
        }
        done
    }

    fn count(&self) -> libc::c_int {
        self.iovecs.len().min(MAX_PIECES) as libc::c_int
    }
}

fn iovec(piece: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: piece.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_cross_piece_boundaries() {
        let (mut first, mut second) = ([0; 3], [0; 4]);
        let mut pieces = Pieces::default();
        pieces.push_own(&mut first);
        pieces.push_own(&mut second);
        assert_eq!(pieces.copy_in(&[b"", b"a", b"bcdef"]), 6);
        assert_eq!(pieces.copy_out(0), b"abcdef\0");
        assert_eq!(pieces.copy_out(4), b"ef\0");
        assert_eq!(pieces.copy_in(&[b"0123456789"]), 7);
        assert_eq!((&first, &second), (b"012", b"3456"));
    }
}
