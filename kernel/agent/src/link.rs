//! Messages between process 1 and the agent about the main process, with its streams.
//!
//! ```text
//! agent ── Start, CloseStdin, Told ──> process 1
//!       <── Running (streams), BecomesInit, NotStarted, Ended ──
//! ```

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use volt_job::job::Process;
use volt_job::{Ended, StartMain, start};

/// Longest message. Defaults of a process may make its text longer than that of the host.
const LONGEST: usize = start::LONGEST + (4 << 10);
/// Most descriptors of a message.
const DESCRIPTORS: usize = 3;

/// A message to process 1.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ToInit {
    /// Asks for the main process.
    Start(Box<StartMain>),
    /// The agent has closed the standard input of the main process.
    CloseStdin,
    /// All clients know the end.
    Told,
}

/// A message to the agent.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ToAgent {
    /// The main process runs. Its streams come along. A new agent gets this at once.
    Running(Box<Running>),
    /// Process 1 executes the image's init, which closes the link. [`ToAgent::NotStarted`] follows if that
    /// fails.
    BecomesInit,
    /// The main process did not start.
    NotStarted(Ended),
    /// The main process has ended.
    Ended(Ended),
}

/// A running main process.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Running {
    /// Its process id.
    pub pid: u32,
    /// Its description.
    pub process: Process,
}

/// Makes a link. Neither end blocks.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Sends a message with descriptors.
pub fn send(link: impl AsFd, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    if text.len() > LONGEST {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("a message beyond {LONGEST} bytes")));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many descriptors"));
    }
    sendmsg(link, &[IoSlice::new(&text)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a message with its descriptors. `None` means that the other end is closed.
pub fn receive<M: DeserializeOwned>(link: impl AsFd) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
    let mut text = vec![0; LONGEST];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(link, &mut [IoSliceMut::new(&mut text)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is too long"));
    }
    let descriptors = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
        _ => Vec::new(),
    });
    let descriptors = descriptors.collect();
    Ok(Some((serde_json::from_slice(&text[..received.bytes])?, descriptors)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_and_descriptors_arrive() {
        let (agent, init) = pair().unwrap();
        let running = Running { pid: 7, process: Process::new(["sh"]) };
        let message = ToAgent::Running(Box::new(running));
        send(&init, &message, &[init.as_fd(), init.as_fd()]).unwrap();
        send(&init, &ToAgent::Ended(Ended::exit(7)), &[]).unwrap();
        let (found, descriptors) = receive::<ToAgent>(&agent).unwrap().unwrap();
        assert_eq!((found, descriptors.len()), (message, 2));
        drop(descriptors);
        let (found, descriptors) = receive::<ToAgent>(&agent).unwrap().unwrap();
        assert_eq!((found, descriptors.len()), (ToAgent::Ended(Ended::exit(7)), 0));
        let error = receive::<ToAgent>(&agent).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        drop(init);
        assert!(receive::<ToAgent>(&agent).unwrap().is_none());
    }

    #[test]
    fn longest_process_of_a_host_fits() {
        let (agent, init) = pair().unwrap();
        let argument = "x".repeat(start::LONGEST);
        let start = StartMain { process: Process::new([argument]), size: None, detached: false };
        let message = ToInit::Start(Box::new(start));
        send(&agent, &message, &[]).unwrap();
        assert_eq!(receive::<ToInit>(&init).unwrap().unwrap().0, message);
    }
}
