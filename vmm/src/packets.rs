//! Packets of a unix socket: a message in JSON, with a descriptor beside it.

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
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest message in bytes.
pub const LONGEST: usize = 16 << 10;
/// Most descriptors beside a message.
const MOST_FDS: usize = 4;

/// Sends a message with at most one descriptor. `flags` decide whether the call waits for room.
///
/// # Errors
/// The other end is gone, or has no room.
pub fn send(
    socket: impl AsFd,
    message: &impl Serialize,
    fd: Option<BorrowedFd<'_>>,
    flags: SendFlags,
) -> io::Result<()> {
    send_several(socket, message, fd.as_slice(), flags)
}

/// As [`send`], with up to four descriptors.
///
/// # Errors
/// As [`send`].
pub fn send_several(
    socket: impl AsFd,
    message: &impl Serialize,
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<()> {
    let mut text = serde_json::to_vec(message)?;
    if text.len() > LONGEST {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the message is too long"));
    }
    text.shrink_to_fit();
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut beside = SendAncillaryBuffer::new(&mut room);
    if !fds.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the message has too many descriptors"));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(&text)], &mut beside, flags | SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a message with at most one descriptor, or `None` if the other end is gone.
///
/// # Errors
/// The socket cannot be read, or the packet is not a message.
pub fn receive<T: DeserializeOwned>(
    socket: impl AsFd,
    flags: RecvFlags,
) -> io::Result<Option<(T, Option<OwnedFd>)>> {
    match receive_several(socket, flags)? {
        Some((_, fds)) if fds.len() > 1 => {
            Err(io::Error::new(io::ErrorKind::InvalidData, "the message had several descriptors"))
        }
        Some((message, mut fds)) => Ok(Some((message, fds.pop()))),
        None => Ok(None),
    }
}

/// As [`receive`], with up to four descriptors.
///
/// # Errors
/// As [`receive`].
pub fn receive_several<T: DeserializeOwned>(
    socket: impl AsFd,
    flags: RecvFlags,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
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
    let fds = beside.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fds: Vec<OwnedFd> = fds.flatten().collect();
    if received.bytes == 0 {
        return Ok(None);
    }
    // The room is aligned, and may hold one more.
    if received.flags.contains(ReturnFlags::CTRUNC) || fds.len() > MOST_FDS {
        let why = "a descriptor sent with a message did not arrive: the limit of open files (RLIMIT_NOFILE) \
                   is reached, or the message had more than four descriptors";
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the message is too long"));
    }
    Ok(Some((serde_json::from_slice(&text[..received.bytes])?, fds)))
}

/// As [`receive`], and waits until `deadline`.
///
/// # Errors
/// As [`receive`]; `TimedOut` after the deadline.
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

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    #[test]
    fn message_with_several_descriptors_is_refused() {
        let null = File::open("/dev/null").unwrap();
        for count in 0..5 {
            let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
            let (near, far) = pair.unwrap();
            let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
            let mut beside = SendAncillaryBuffer::new(&mut room);
            let fds = vec![null.as_fd(); count];
            if count > 0 {
                assert!(beside.push(SendAncillaryMessage::ScmRights(&fds)));
            }
            let text = serde_json::to_vec("ping").unwrap();
            rustix::net::sendmsg(near, &[IoSlice::new(&text)], &mut beside, SendFlags::empty()).unwrap();
            match receive::<String>(far, RecvFlags::empty()) {
                Ok(message) => assert_eq!((count <= 1, message.unwrap().1.is_some()), (true, count == 1)),
                Err(error) => {
                    assert!(
                        count > 1 && error.to_string().contains("several descriptors"),
                        "{count}: {error}"
                    );
                }
            }
        }
    }
}
