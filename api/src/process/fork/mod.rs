//! Forks of a running VM, each into its own process. The parent captures its VM once. It spawns this program
//! anew for each child, and passes one end of a socket as the child's standard input.
//!
//! ```text
//!   parent: setup ──> child: creates an empty VM, while the parent captures its own
//!     └─ handover ──> child: restores, paused ── ready ──┐
//!   ┌──────────────────── all are ready <────────────────┘
//!   └─ run ──> child: runs ── ready ──> all run ── detach ──> all children: independent of the parent
//! ```
//!
//! A fork is all or nothing. A child whose socket closes before "detach" removes the files that it created
//! and exits. The parent closes the sockets of all children if one fails, and the kernel does if the parent
//! dies. "Detach" is one write for all children (see [`detachment`]), so that a parent that dies at that
//! moment leaves all of them or none.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use volt_vmm::config::Overrides;
use volt_vmm::{Cure, VmShape};

use super::guest_note::GuestNote;

pub(crate) mod children;
pub(crate) mod detachment;
pub(crate) mod parent;

/// Longest message, in bytes. The handover is not a message.
const LONGEST_MESSAGE: u32 = 1 << 20;

/// The parent's first message.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ChildSetup {
    /// The shape of the parent's VM.
    pub(crate) shape: VmShape,
    pub(crate) overrides: Overrides,
    /// The child's run directory, if it has a name.
    pub(crate) run_dir: Option<PathBuf>,
    /// Whether the child's VM stays paused until a client resumes it.
    pub(crate) paused: bool,
    /// The state of the guest's workload.
    pub(crate) note: GuestNote,
    /// Whether the agent of the child has to wake its guest.
    pub(crate) requires_agent: bool,
    pub(crate) limits: RequestLimits,
}

/// Limits of the parent's API, which hold for the child's too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RequestLimits {
    /// Most bytes of the body of a request.
    pub(crate) longest_body: usize,
    /// Most bytes of metadata.
    pub(crate) metadata: usize,
}

/// The parent's last message: run the VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Run;

/// A message of a child.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ChildMessage {
    /// The child has restored the VM, or runs it.
    Ready,
    /// The child exits with this error.
    Failed { problem: String, cures: Vec<Cure> },
}

/// One end of the socket between parent and child.
#[derive(Debug)]
pub(crate) struct ForkSocket(pub(crate) UnixStream);

impl ForkSocket {
    pub(crate) fn send(&mut self, message: &impl Serialize) -> io::Result<()> {
        let text = serde_json::to_vec(message)?;
        let len = u32::try_from(text.len()).ok().filter(|len| *len <= LONGEST_MESSAGE);
        let len = len.ok_or_else(|| io::Error::from(ErrorKind::InvalidData))?;
        self.0.write_all(&[&len.to_le_bytes(), &text[..]].concat())
    }

    /// Returns whether a message, or the end of the other side, comes within `limit`.
    pub(crate) fn is_readable_within(&self, limit: Duration) -> bool {
        let limit = Timespec::try_from(limit).ok();
        // The caller asks again after an error such as EINTR.
        poll(&mut [PollFd::new(&self.0, PollFlags::IN)], limit.as_ref()).is_ok_and(|count| count > 0)
    }

    /// Receives a message, and reads no byte after it, because the next bytes may carry descriptors.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> io::Result<T> {
        let mut len = [0; 4];
        self.0.read_exact(&mut len)?;
        let len = u32::from_le_bytes(len);
        if len > LONGEST_MESSAGE {
            return Err(ErrorKind::InvalidData.into());
        }
        let mut text = vec![0; len as usize];
        self.0.read_exact(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receive_reads_one_message_and_no_byte_after_it() {
        let (near, far) = UnixStream::pair().unwrap();
        let (mut near, mut far) = (ForkSocket(near), ForkSocket(far));
        near.send(&Run).unwrap();
        let (problem, cures) = ("no tap".to_owned(), vec![Cure::Tap { id: "eth0".to_owned() }]);
        near.send(&ChildMessage::Failed { problem, cures: cures.clone() }).unwrap();
        near.0.write_all(b"rest").unwrap();
        assert_eq!(far.receive::<Run>().unwrap(), Run);
        let ChildMessage::Failed { problem, cures: received } = far.receive().unwrap() else { panic!() };
        assert_eq!((problem.as_str(), received), ("no tap", cures));
        let mut rest = [0; 4];
        far.0.read_exact(&mut rest).unwrap();
        assert_eq!(&rest, b"rest");
        near.0.write_all(&u32::MAX.to_le_bytes()).unwrap();
        assert_eq!(far.receive::<Run>().unwrap_err().kind(), ErrorKind::InvalidData);
        drop(near);
        assert_eq!(far.receive::<Run>().unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }
}
