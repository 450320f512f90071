//! Standard output or standard error of a client, which waits for its reader without blocking the client.
//!
//! Others share the opening of a terminal or a pipe, so its mode stays. The screen opens it once more, and
//! that opening does not block.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags, fstat};
use rustix::io::Errno;

/// Bytes that may wait. More is not taken from the console.
const MOST: usize = 64 << 10;
/// Bytes that may wait after the end of a command: more than an agent, a pipe and sockets hold.
const MOST_AT_END: usize = 4 << 20;
/// Bytes that a pipe takes whole if it is ready (pipe(7)).
const PIECE: usize = 4096;

/// See the module.
#[derive(Debug)]
pub(super) struct Screen {
    stream: BorrowedFd<'static>,
    /// The opening that does not block; absent for other kinds of files, and where the host refuses.
    own: Option<OwnedFd>,
    waiting: VecDeque<u8>,
}

impl Screen {
    pub(super) fn open(stream: BorrowedFd<'static>) -> Self {
        let kind = fstat(stream).map(|found| FileType::from_raw_mode(found.st_mode));
        let stalls = matches!(kind, Ok(FileType::Fifo | FileType::CharacterDevice));
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let path = format!("/proc/self/fd/{}", stream.as_raw_fd());
        let open = || rustix::fs::open(&path, flags, Mode::empty()).ok();
        Self { stream, own: stalls.then(open).flatten(), waiting: VecDeque::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= MOST
    }

    /// Whether it takes nothing more, though the command has ended.
    pub(super) fn has_no_room(&self) -> bool {
        self.waiting.len() >= MOST_AT_END
    }

    pub(super) fn add(&mut self, output: &[u8]) {
        self.waiting.extend(output);
    }

    /// Writes as much as the reader takes now.
    ///
    /// # Errors
    /// The reader has gone, or the disk is full.
    pub(super) fn write(&mut self) -> io::Result<()> {
        while !self.waiting.is_empty() {
            let (front, _) = self.waiting.as_slices();
            let piece = &front[..front.len().min(PIECE)];
            let written = match &self.own {
                Some(own) => rustix::io::write(own, piece),
                None if self.takes_more() => rustix::io::write(self.stream, piece),
                None => return Ok(()),
            };
            match written {
                Ok(count) => drop(self.waiting.drain(..count)),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn takes_more(&self) -> bool {
        let mut ready = [PollFd::new(self, PollFlags::OUT)];
        poll(&mut ready, Some(&Timespec::default())).is_ok_and(|count| count > 0)
    }
}

impl AsFd for Screen {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.own {
            Some(own) => own.as_fd(),
            None => self.stream,
        }
    }
}
