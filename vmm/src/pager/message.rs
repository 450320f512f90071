//! What is said between a VM and its pager: a message is a packet of a unix socket, in JSON, with descriptors beside it.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::memory::lazy::prefetch::Reading;

/// Both ends must have the same: they are the same program, but for an update under running VMs.
pub const VERSION: u32 = 3;

/// Bytes of a message, at most.
const LONGEST: usize = 4096;
/// Descriptors beside one, at most.
const MOST_FDS: usize = 1;

/// What a VM asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Ask {
    /// The base. With a memfd beside it if the VM has one already.
    Base {
        /// Of the one who asks.
        version: u32,
        /// Bytes that it must be long.
        memory_len: u64,
    },
    /// To have page faults answered, of the userfaultfd beside it.
    Serve {
        /// Where the base is mapped in the VM's process.
        start: u64,
        /// Bytes.
        len: u64,
    },
    /// To have the base filled.
    Complete,
    /// To have what the file beside it names ([`crate::memory::page_ranges`]) fetched before it is touched. No answer, unless it is not.
    Prefetch,
    /// What has been fetched.
    Fetched,
    /// To say that it is alive.
    Ping,
}

/// What a pager says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Answer {
    /// It is done; after [`Ask::Base`] with the memfd beside it.
    Done,
    /// It is not, and why.
    Refused(String),
    /// After [`Ask::Fetched`], as [`crate::memory::lazy::faults::Fetched`] has it. The file beside it lists the chunks that were fetched ahead.
    Fetched {
        /// Bytes of a chunk.
        chunk_len: u64,
        /// Chunks that somebody waited for.
        touched: u64,
        /// How far reading ahead is, once it has begun.
        prefetch: Option<Reading>,
    },
    /// Nothing is fetched ahead, and why.
    NotPrefetched(String),
    /// After [`Ask::Ping`].
    Alive,
    /// Not an answer: a range of the VM's memory cannot be had.
    Unreadable {
        /// Offset.
        start: u64,
        /// Offset behind it.
        end: u64,
        /// Why.
        why: String,
    },
}

/// Sends a message. `flags` says whether it waits for room.
///
/// # Errors
/// The other end is gone, or there is no room.
pub fn send(
    socket: impl AsFd,
    message: &impl Serialize,
    fd: Option<BorrowedFd<'_>>,
    flags: SendFlags,
) -> io::Result<()> {
    let mut text = serde_json::to_vec(message)?;
    if text.len() > LONGEST {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a message too long for a pager"));
    }
    text.shrink_to_fit();
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut beside = SendAncillaryBuffer::new(&mut room);
    let fds: Vec<_> = fd.into_iter().collect();
    if !fds.is_empty() {
        beside.push(SendAncillaryMessage::ScmRights(&fds));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(&text)], &mut beside, flags | SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives one; nothing when the other end is gone.
///
/// # Errors
/// It cannot be read, or is none.
pub fn receive<T: DeserializeOwned>(
    socket: impl AsFd,
    flags: RecvFlags,
) -> io::Result<Option<(T, Option<OwnedFd>)>> {
    let mut text = [0; LONGEST];
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut beside = RecvAncillaryBuffer::new(&mut room);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(&mut text)], &mut beside, flags) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?,
        }
    };
    let mut fds = beside.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fd = fds.next().and_then(|mut fds| fds.next());
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        let why = "a descriptor beside a message did not arrive: the limit of open files (RLIMIT_NOFILE) is reached, or it had several";
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message that is too long"));
    }
    Ok(Some((serde_json::from_slice(&text[..received.bytes])?, fd)))
}

/// Receives a message as [`receive`] does, and waits for it until `deadline`.
///
/// # Errors
/// As [`receive`]; `TimedOut` if none has come by then.
pub fn receive_until<T: DeserializeOwned>(
    socket: impl AsFd,
    deadline: Instant,
) -> io::Result<Option<(T, Option<OwnedFd>)>> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        let mut fds = [PollFd::new(&socket, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        match receive(&socket, RecvFlags::DONTWAIT) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            other => return other,
        }
    }
}
