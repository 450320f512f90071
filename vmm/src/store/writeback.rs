//! Starts the writeback of a file before its sync.

use std::fs::File;
use std::os::fd::AsRawFd;

/// `SYNC_FILE_RANGE_WRITE` of `linux/fs.h`: starts writing dirty pages, and waits for none.
const WRITE: libc::c_uint = 2;

/// Starts writing a file's dirty pages, so a later sync has less to do. If the file system refuses, the sync
/// writes all.
#[allow(unsafe_code)]
pub fn start(file: &File) {
    let all: libc::off64_t = 0;
    // SAFETY: the call takes no pointer. Offset 0 and length 0 stand for the whole file.
    let _ = unsafe { libc::syscall(libc::SYS_sync_file_range, file.as_raw_fd(), all, all, WRITE) };
}
