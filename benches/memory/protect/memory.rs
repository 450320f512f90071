//! Memory of a guest, of the kinds that a VMM can give it.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};

use volt_benches::{OrSay, Result, built};

/// Kinds of memory that a VM can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Anonymous.
    Anonymous,
    /// A memfd, mapped shared: a VM that has booted.
    Shared,
    /// A memfd, mapped private: a VM that was frozen, or restored from packed memory.
    PrivateMemfd,
    /// A file of a file system, mapped private: a VM restored from raw memory.
    PrivateFile,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::Anonymous, Self::Shared, Self::PrivateMemfd, Self::PrivateFile];

    pub fn name(self) -> &'static str {
        match self {
            Self::Anonymous => "anonymous",
            Self::Shared => "memfd, shared",
            Self::PrivateMemfd => "memfd, private",
            Self::PrivateFile => "file, private",
        }
    }
}

/// Memory that is there, every page of it.
#[derive(Debug)]
pub struct Memory {
    pub start: u64,
    pub len: u64,
}

impl Memory {
    pub fn new(kind: Kind, len: u64) -> Result<Self> {
        let (file, flags) = match kind {
            Kind::Anonymous => (None, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS),
            Kind::Shared => (Some(memfd(len)?), libc::MAP_SHARED),
            Kind::PrivateMemfd => (Some(memfd(len)?), libc::MAP_PRIVATE),
            Kind::PrivateFile => (Some(nameless(len)?), libc::MAP_PRIVATE),
        };
        let (access, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.as_ref().map_or(-1, AsRawFd::as_raw_fd));
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len as usize, access, flags, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error()).or_say("map memory");
        }
        // SAFETY: advice about that mapping: pages of 4 KiB, as where a base is shared.
        unsafe { libc::madvise(start, len as usize, libc::MADV_NOHUGEPAGE) };
        // SAFETY: the mapping is this long, and nobody else has it yet.
        unsafe { std::ptr::write_bytes(start.cast::<u8>(), 1, len as usize) };
        Ok(Self { start: start as u64, len })
    }

    /// Copies pages to a file. The guest may write to them meanwhile.
    pub fn copy_to(&self, to: &File, offset: u64, len: u64) -> io::Result<()> {
        let from = (self.start + offset) as *const libc::c_void;
        // SAFETY: the kernel reads from the mapping, which lives as long as this object.
        let done = unsafe { libc::pwrite(to.as_raw_fd(), from, len as usize, offset.cast_signed()) };
        if done == len.cast_signed() as isize { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Reads all of the memory, to which nobody writes now.
    pub fn content(&self) -> Vec<u8> {
        // SAFETY: the mapping is this long, and its guest stands still.
        unsafe { std::slice::from_raw_parts(self.start as *const u8, self.len as usize) }.to_vec()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this object's, and its guest is gone.
        unsafe { libc::munmap(self.start as *mut _, self.len as usize) };
    }
}

/// A memfd of zeros.
pub fn memfd(len: u64) -> Result<File> {
    // SAFETY: the name is a string that ends, and the descriptor is new.
    let fd = unsafe { libc::memfd_create(c"copy".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error()).or_say("create a memfd");
    }
    // SAFETY: it is this function's own.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(len).or_say("make room in a memfd")?;
    Ok(file)
}

/// A file on the disk of this directory, without a name.
fn nameless(len: u64) -> Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let here = built::source_tree()?.join("target");
    let file = File::options().read(true).write(true).custom_flags(libc::O_TMPFILE).open(here);
    let file = file.or_say("make a file without a name")?;
    file.set_len(len).or_say("make room in a file")?;
    Ok(file)
}
