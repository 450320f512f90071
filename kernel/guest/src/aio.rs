//! Concurrent requests to a disk: the kernel's asynchronous I/O (`io_submit`), past the page cache.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

/// Alignment of memory and offsets for O_DIRECT that suits every disk.
const ALIGNMENT: usize = 4096;
const CMD_PREAD: u16 = 0;
const CMD_PWRITE: u16 = 1;

/// `struct iocb` (linux/aio_abi.h).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Request {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    len: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    resfd: u32,
}

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Event {
    data: u64,
    request: u64,
    result: i64,
    result2: i64,
}

const _: () = assert!(size_of::<Request>() == 64 && size_of::<Event>() == 32);

/// A disk with slots for requests, each with its own memory.
pub(crate) struct Disk {
    file: File,
    context: libc::c_ulong,
    write: bool,
    len: usize,
    requests: Vec<Request>,
    events: Vec<Event>,
    /// The slots' memory. Only the kernel accesses it, during requests.
    memory: *mut u8,
}

impl Disk {
    /// Opens a disk for up to `slots` concurrent requests of `len` bytes.
    pub(crate) fn open(path: &str, write: bool, len: usize, slots: usize) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(write).custom_flags(libc::O_DIRECT).open(path)?;
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes one number.
        check(unsafe { libc::syscall(libc::SYS_io_setup, slots, &raw mut context) })?;
        // SAFETY: the layout's size is not zero.
        let memory = unsafe { std::alloc::alloc_zeroed(layout(len * slots)) };
        assert!(!memory.is_null(), "no memory for requests");
        let (requests, events) = (vec![Request::default(); slots], vec![Event::default(); slots]);
        Ok(Self { file, context, write, len, requests, events, memory })
    }

    /// Starts a request in each of these free slots, at these offsets.
    pub(crate) fn submit(&mut self, wanted: &[(usize, u64)]) -> io::Result<()> {
        let opcode = if self.write { CMD_PWRITE } else { CMD_PREAD };
        let mut pointers = Vec::with_capacity(wanted.len());
        for &(slot, offset) in wanted {
            self.requests[slot] = Request {
                data: slot as u64,
                opcode,
                fd: self.file.as_raw_fd().cast_unsigned(),
                buffer: self.memory as u64 + (slot * self.len) as u64,
                len: self.len as u64,
                offset: offset.cast_signed(),
                ..Request::default()
            };
            pointers.push(&raw const self.requests[slot]);
        }
        let mut rest = &pointers[..];
        while !rest.is_empty() {
            // SAFETY: the kernel copies the requests. Their memory lies in `memory`, which outlives all
            // requests.
            let taken =
                unsafe { libc::syscall(libc::SYS_io_submit, self.context, rest.len(), rest.as_ptr()) };
            rest = &rest[check(taken)?..];
        }
        Ok(())
    }

    /// Waits until requests have ended, and returns their slots in `finished`.
    pub(crate) fn wait(&mut self, finished: &mut Vec<usize>) -> io::Result<()> {
        let none = std::ptr::null_mut::<libc::timespec>();
        let (most, events) = (self.events.len(), self.events.as_mut_ptr());
        // SAFETY: the kernel writes at most `most` events, for which `events` has room.
        let got = unsafe { libc::syscall(libc::SYS_io_getevents, self.context, 1, most, events, none) };
        finished.clear();
        for event in &self.events[..check(got)?] {
            match event.result {
                done if done == self.len as i64 => finished.push(event.data as usize),
                short @ 0.. => return Err(io::Error::other(format!("{short} bytes of {}", self.len))),
                error => return Err(io::Error::from_raw_os_error(-error as i32)),
            }
        }
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // SAFETY: io_destroy returns after the last request, so that nothing uses the memory. The layout is
        // that of its allocation.
        unsafe {
            libc::syscall(libc::SYS_io_destroy, self.context);
            std::alloc::dealloc(self.memory, layout(self.len * self.requests.len()));
        }
    }
}

fn layout(len: usize) -> std::alloc::Layout {
    std::alloc::Layout::from_size_align(len, ALIGNMENT).expect("a size below isize::MAX")
}

fn check(result: libc::c_long) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}
