//! The resolver: asks the servers of the host for names, on behalf of a network device that judged them.
//!
//! ```text
//!   device ──number, type, name──> resolver ──question──> servers of /etc/resolv.conf
//!          <──number, message────           <──answer────
//!          <──0, network of the host─────────── as it changes (netlink)
//! ```
//!
//! It is a process of its own, beside the VM's, in the network namespace where volt-vmm was started. A
//! library without such processes runs it as a thread. It ends when the device closes its socket.

mod lookup;
mod protocol;
mod serve;
mod servers;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

pub(crate) use protocol::{FromResolver, LONGEST_MESSAGE, decode, encode};
pub(crate) use serve::{HostView, run};

/// A socket that keeps messages apart: the end of the device, and that of the resolver.
///
/// # Errors
/// The host refuses a socket.
pub(crate) fn socket() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}
