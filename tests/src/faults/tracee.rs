//! Looks into the process whose call waits: its paths and descriptors, and transfers on its behalf.
#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, kill_process, pidfd_getfd, pidfd_open};

use super::Caller;
use super::calls::{Object, WRITING, When};
use crate::patience::wait_until;

/// Longest path that is read.
const PATH: usize = 512;
const PAGE: usize = 4096;
/// Most bytes that a short transfer moves.
const MOST: usize = 1 << 20;

/// A thread whose call waits.
pub(super) struct Tracee<'a> {
    call: &'a libc::seccomp_notif,
}

impl<'a> Tracee<'a> {
    pub(super) fn of(call: &'a libc::seccomp_notif) -> Self {
        Self { call }
    }

    fn argument(&self, number: usize) -> u64 {
        self.call.data.args[number]
    }

    /// Describes the object of the call. Returns none if the call does not count.
    pub(super) fn object(&self, object: Object) -> Option<String> {
        match object {
            Object::Process => Some(String::new()),
            Object::Path(number) => Some(self.text(self.argument(number))),
            Object::Descriptor(number) => Some(self.descriptor(number)),
            Object::File(number) => {
                let name = self.descriptor(number);
                let counts = name.starts_with('/') && !name.starts_with("/dev/");
                counts.then_some(name)
            }
            Object::Socket(number) => {
                let name = self.descriptor(number);
                name.starts_with("socket:").then_some(name)
            }
        }
    }

    fn descriptor(&self, number: usize) -> String {
        let link = format!("/proc/{}/fd/{}", self.call.pid, self.argument(number) as i32);
        fs::read_link(link).map_or_else(|_| "?".to_owned(), |name| name.display().to_string())
    }

    fn text(&self, at: u64) -> String {
        let to_page_end = PAGE - at as usize % PAGE;
        let mut bytes = vec![0; PATH.min(to_page_end)];
        let read = self.read(at, &mut bytes).unwrap_or(0);
        let path = bytes[..read].split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(path).into_owned()
    }

    /// Whether the condition holds that the kernel's filter could not check.
    pub(super) fn meets(&self, when: When) -> bool {
        let When::Opens { writes } = when else { return true };
        // The first field of `struct open_how`.
        let mut flags = [0; 8];
        let read = self.read(self.argument(2), &mut flags).unwrap_or(0);
        read == flags.len() && writes == (u64::from_le_bytes(flags) & u64::from(WRITING) != 0)
    }

    pub(super) fn caller(&self) -> Caller {
        Caller::of(self.call.pid)
    }

    /// Returns the process id. The call names the thread.
    pub(super) fn process(&self) -> Option<Pid> {
        number_in_status(self.call.pid, "Tgid:")
    }

    /// Returns the process of the VM that the calling process serves, or the calling process itself.
    pub(super) fn vm(&self) -> Option<Pid> {
        let mut process = self.process()?;
        // A program that the starter starts has the starter's name at first.
        while Caller::of(id(process)) != Caller::Other {
            process = number_in_status(id(process), "PPid:")?;
        }
        Some(process)
    }

    /// Executes half of the transfer. Returns the count, or none if the transfer has no half.
    pub(super) fn transfer_half(&self) -> Option<i64> {
        let number = libc::c_long::from(self.call.data.nr);
        let is_vector = [
            libc::SYS_writev,
            libc::SYS_pwritev,
            libc::SYS_pwritev2,
            libc::SYS_readv,
            libc::SYS_preadv,
            libc::SYS_preadv2,
        ]
        .contains(&number);
        if [libc::SYS_copy_file_range, libc::SYS_sendfile].contains(&number) {
            return self.copy_half(number);
        }
        let pieces =
            if is_vector { self.pieces()? } else { vec![(self.argument(1), self.argument(2) as usize)] };
        let half = half_of(pieces.iter().map(|(_, len)| len).sum())?;
        let file = self.duplicate(self.argument(0))?;
        let at = match number {
            libc::SYS_write | libc::SYS_read | libc::SYS_writev | libc::SYS_readv => None,
            _ => Some(self.argument(3) as i64),
        };
        let mut buffer = Aligned::of(half);
        let reads = [libc::SYS_read, libc::SYS_pread64, libc::SYS_readv, libc::SYS_preadv, libc::SYS_preadv2];
        if reads.contains(&number) {
            let count = read(&file, buffer.bytes(), at).ok()?;
            self.scatter(&pieces, &buffer.bytes()[..count])?;
            return Some(count as i64);
        }
        self.gather(&pieces, buffer.bytes())?;
        write(&file, buffer.bytes(), at).ok().map(|count| count as i64)
    }

    /// Copies half of `copy_file_range` or `sendfile` without offsets of the caller's. Those with offsets are
    /// executed whole.
    fn copy_half(&self, number: libc::c_long) -> Option<i64> {
        let (source, target, len) = if number == libc::SYS_sendfile { (1, 0, 3) } else { (0, 2, 4) };
        let offsets: &[usize] = if number == libc::SYS_sendfile { &[2] } else { &[1, 3] };
        if offsets.iter().any(|offset| self.argument(*offset) != 0) {
            return None;
        }
        let (source, target) =
            (self.duplicate(self.argument(source))?, self.duplicate(self.argument(target))?);
        let half = half_of(self.argument(len) as usize)?;
        let mut buffer = Aligned::of(half);
        let count = read(&source, buffer.bytes(), None).ok()?;
        write(&target, &buffer.bytes()[..count], None).ok().map(|count| count as i64)
    }

    fn pieces(&self) -> Option<Vec<(u64, usize)>> {
        let count = self.argument(2) as usize;
        let mut bytes = vec![0; count * 16];
        self.read(self.argument(1), &mut bytes).ok()?;
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        Some(bytes.chunks_exact(16).map(|piece| (word(&piece[..8]), word(&piece[8..]) as usize)).collect())
    }

    fn duplicate(&self, fd: u64) -> Option<OwnedFd> {
        let process = pidfd_open(self.process()?, PidfdFlags::empty()).ok()?;
        pidfd_getfd(process, fd as i32, PidfdGetfdFlags::empty()).ok()
    }

    fn gather(&self, pieces: &[(u64, usize)], into: &mut [u8]) -> Option<()> {
        let mut rest = into;
        for (at, len) in pieces {
            let (piece, more) = rest.split_at_mut((*len).min(rest.len()));
            (self.read(*at, piece).ok()? == piece.len()).then_some(())?;
            rest = more;
        }
        Some(())
    }

    fn scatter(&self, pieces: &[(u64, usize)], from: &[u8]) -> Option<()> {
        let mut rest = from;
        for (at, len) in pieces {
            let (piece, more) = rest.split_at((*len).min(rest.len()));
            self.write(*at, piece).ok()?;
            rest = more;
        }
        Some(())
    }

    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<usize> {
        let here = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let there = libc::iovec { iov_base: at as *mut _, iov_len: into.len() };
        // SAFETY: the kernel writes at most `into.len()` bytes, to `into`.
        let count = unsafe {
            libc::process_vm_readv(self.call.pid as i32, &raw const here, 1, &raw const there, 1, 0)
        };
        if count < 0 { Err(io::Error::last_os_error()) } else { Ok(count as usize) }
    }

    fn write(&self, at: u64, from: &[u8]) -> io::Result<usize> {
        let here = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
        let there = libc::iovec { iov_base: at as *mut _, iov_len: from.len() };
        // SAFETY: the kernel only reads from `from`. The call that waits has offered the other memory.
        let count = unsafe {
            libc::process_vm_writev(self.call.pid as i32, &raw const here, 1, &raw const there, 1, 0)
        };
        if count < 0 { Err(io::Error::last_os_error()) } else { Ok(count as usize) }
    }
}

/// Returns the number of a process as the system tells it.
pub(super) fn id(process: Pid) -> u32 {
    process.as_raw_nonzero().get().cast_unsigned()
}

fn number_in_status(process: u32, key: &str) -> Option<Pid> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    Pid::from_raw(line.trim().parse().ok()?)
}

/// Kills a process, if there is one.
pub(super) fn kill(process: Option<Pid>) {
    if let Some(process) = process {
        let _ = kill_process(process, Signal::KILL);
    }
}

/// Waits until a process beside a VM that has ended ends too, also if its parent has not taken its status.
///
/// # Panics
/// It does not end in time.
pub fn wait_for_end(process: Pid) {
    let name = format!("/proc/{}/stat", id(process));
    wait_until("a process beside a VM that has ended ends", || {
        // The state follows the name in parentheses.
        fs::read_to_string(&name).map_or(true, |stat| stat.contains(") Z "))
    });
}

/// Returns half of a count, in whole pages where there are several: direct I/O needs that.
fn half_of(len: usize) -> Option<usize> {
    let half = if len >= 2 * PAGE { len / 2 / PAGE * PAGE } else { len / 2 };
    (half > 0).then_some(half.min(MOST))
}

/// Bytes that begin at a page, for direct I/O.
struct Aligned {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    fn of(len: usize) -> Self {
        let memory = vec![0; len + PAGE];
        let start = memory.as_ptr().align_offset(PAGE);
        Self { memory, start, len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

fn read(file: &OwnedFd, into: &mut [u8], at: Option<i64>) -> io::Result<usize> {
    let (fd, start, len) = (file.as_raw_fd(), into.as_mut_ptr().cast(), into.len());
    // SAFETY: the kernel writes at most `len` bytes, to `into`.
    let count = unsafe {
        match at {
            Some(at) => libc::pread(fd, start, len, at),
            None => libc::read(fd, start, len),
        }
    };
    if count < 0 { Err(io::Error::last_os_error()) } else { Ok(count as usize) }
}

fn write(file: &OwnedFd, from: &[u8], at: Option<i64>) -> io::Result<usize> {
    let (fd, start, len) = (file.as_raw_fd(), from.as_ptr().cast(), from.len());
    // SAFETY: the kernel reads `len` bytes of `from`.
    let count = unsafe {
        match at {
            Some(at) => libc::pwrite(fd, start, len, at),
            None => libc::write(fd, start, len),
        }
    };
    if count < 0 { Err(io::Error::last_os_error()) } else { Ok(count as usize) }
}
