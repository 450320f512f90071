//! Write protection by userfaultfd (linux/userfaultfd.h).
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};

const API: u64 = 0xc018_aa3f;
const REGISTER: u64 = 0xc020_aa00;
const UNREGISTER: u64 = 0x8010_aa01;
const WRITEPROTECT: u64 = 0xc018_aa06;
const MODE_WP: u64 = 2;
const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1;
const FEATURE_WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
const FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
const EVENT_PAGEFAULT: u8 = 0x12;
const MESSAGE: usize = 32;

/// Memory that is watched for writes.
#[derive(Debug)]
pub struct Userfault {
    file: File,
    start: u64,
    len: u64,
}

impl Userfault {
    /// Watches `len` bytes at `start`, none of which is protected yet.
    ///
    /// # Errors
    /// The kernel cannot watch memory of this kind for writes.
    pub fn over(start: u64, len: u64) -> io::Result<Self> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: the call takes flags alone, and gives a new descriptor.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it is this function's own.
        let file = unsafe { File::from_raw_fd(fd as i32) };
        let watched = Self { file, start, len };
        let features = FEATURE_PAGEFAULT_FLAG_WP | FEATURE_WP_HUGETLBFS_SHMEM | FEATURE_WP_UNPOPULATED;
        watched.call(API, &mut [0xaa, features, 0])?;
        watched.call(REGISTER, &mut [start, len, MODE_WP, 0])?;
        Ok(watched)
    }

    /// Protects pages, or lets writes to them go on.
    pub fn protect(&self, offset: u64, len: u64, protects: bool) -> io::Result<()> {
        self.call(WRITEPROTECT, &mut [self.start + offset, len, u64::from(protects)])
    }

    /// The offsets of the pages that somebody waits to write to. Does not wait.
    pub fn faults(&self, mut each: impl FnMut(u64) -> io::Result<()>) -> io::Result<u64> {
        let (mut messages, mut count) = ([0; MESSAGE * 16], 0);
        loop {
            let len = match (&self.file).read(&mut messages) {
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(count),
                Err(error) => return Err(error),
            };
            for message in
                messages[..len].chunks_exact(MESSAGE).filter(|message| message[0] == EVENT_PAGEFAULT)
            {
                let address = u64::from_ne_bytes(message[16..24].try_into().expect("8 bytes"));
                each((address - self.start) / 4096 * 4096)?;
                count += 1;
            }
        }
    }

    fn call<const N: usize>(&self, request: u64, argument: &mut [u64; N]) -> io::Result<()> {
        // SAFETY: each request above has an argument of as many words as its caller gives.
        let done = unsafe { libc::ioctl(self.file.as_raw_fd(), request as _, argument.as_mut_ptr()) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl Drop for Userfault {
    fn drop(&mut self) {
        let _ = self.call(UNREGISTER, &mut [self.start, self.len]);
    }
}
