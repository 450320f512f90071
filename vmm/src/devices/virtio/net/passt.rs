//! passt (<https://passt.top>): a process of the host that takes the guest's frames apart and makes sockets' traffic of them, so
//! that a network needs no privileges. One process serves one device, and ends with it.
//!
//! ```text
//!  frame, header stripped ──length, bytes──> unix stream socket ──> passt ──> sockets of the host
//! ```

use std::io::{self, ErrorKind, PipeReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use super::address::Mac;
use super::backend;
use super::backend::Backend;
use super::header;
use super::pieces::Pieces;
use crate::error::{Error, Result};

const PROGRAM: &str = "passt";
/// The longest frame that passt takes or gives.
const LONGEST: usize = 0xffff;
/// Bytes of the length in front of each.
const PREFIX: usize = 4;
/// The shortest frame of an Ethernet.
const SHORTEST_ON_WIRE: usize = 60;
/// What is read of the socket at once.
const INBOX: usize = 4 * (PREFIX + LONGEST);

/// A passt, and what is under way between it and the device. Dropped, it is ended.
#[derive(Debug)]
pub(super) struct Passt {
    child: Child,
    socket: UnixStream,
    complaints: PipeReader,
    inbox: Box<[u8]>,
    /// What of the inbox was read from the socket and is not taken yet.
    filled: std::ops::Range<usize>,
    /// The rest of a frame of which the socket took a part.
    outbox: Vec<u8>,
}

impl Passt {
    /// Starts one for a guest whose address is `mac`, as far as is known. `forward` are TCP ports of 127.0.0.1 and the guest's ports that they lead to.
    ///
    /// # Errors
    /// [`Error::Config`] for a port that cannot be forwarded; [`Error::Host`] when passt is missing or does not start.
    pub fn start(forward: &[(u16, u16)], mtu: Option<u16>, mac: Mac) -> Result<Self> {
        check_ports(forward)?;
        let failed = |source| Error::host("start passt", source);
        let (socket, its_socket) = UnixStream::pair().map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        let (complaints, its_complaints) = io::pipe().map_err(failed)?;
        // Neither side waits for the other: nobody reads them while all is well.
        for end in [complaints.as_fd(), its_complaints.as_fd()] {
            rustix::io::ioctl_fionbio(end, true).map_err(|source| failed(source.into()))?;
        }
        let child = spawn(forward, mtu, &its_socket.into(), its_complaints.into()).map_err(|source| {
            let missing = source.kind() == ErrorKind::NotFound;
            let advice = if missing { ": install it (Debian's package is passt)" } else { "" };
            Error::host(format!("start passt{advice}"), source)
        })?;
        let mut passt = Self::with(child, socket, complaints);
        // Before it listens anywhere. If it has ended already, that is noticed where it is used.
        let _ = passt.introduce(mac);
        Ok(passt)
    }

    /// A passt that is connected already.
    pub(super) fn with(child: Child, socket: UnixStream, complaints: PipeReader) -> Self {
        let inbox = vec![0; INBOX].into();
        Self { child, socket, complaints, inbox, filled: 0..0, outbox: Vec::new() }
    }

    /// Lets passt see where the guest's frames come from. Before that it sends to everybody, and no TCP heeds what is sent to
    /// everybody: a guest that goes on after a restore, and has nothing to say by itself, would not be reached.
    fn introduce(&mut self, mac: Mac) -> io::Result<()> {
        let frame = introduction(mac);
        self.outbox.extend((frame.len() as u32).to_be_bytes());
        self.outbox.extend(frame);
        self.flush()
    }

    /// The process.
    #[cfg(test)]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The next frame in the inbox, if all of it is there.
    fn next_frame(&mut self) -> io::Result<Option<std::ops::Range<usize>>> {
        let filled = &self.inbox[self.filled.clone()];
        let Some((prefix, rest)) = filled.split_first_chunk::<PREFIX>() else { return Ok(None) };
        let len = u32::from_be_bytes(*prefix) as usize;
        if len > LONGEST {
            return Err(io::Error::new(ErrorKind::InvalidData, "passt sent an impossible length"));
        }
        if rest.len() < len {
            return Ok(None);
        }
        let from = self.filled.start + PREFIX;
        self.filled.start = from + len;
        Ok(Some(from..from + len))
    }

    fn fill_inbox(&mut self) -> io::Result<()> {
        self.inbox.copy_within(self.filled.clone(), 0);
        self.filled = 0..self.filled.len();
        match self.socket.read(&mut self.inbox[self.filled.end..]) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.filled.end += count;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// An error of the socket, or what passt said before it ended.
    fn explained(&mut self, error: io::Error) -> io::Error {
        if !backend::is_gone(&error) {
            return error;
        }
        let mut said = [0; 4096];
        let len = self.complaints.read(&mut said).unwrap_or(0);
        let said = String::from_utf8_lossy(&said[..len]);
        let telling = |line: &&str| !line.trim().is_empty() && !line.contains("syslog");
        let last = said.lines().rfind(telling).unwrap_or("it says nothing about it").to_owned();
        io::Error::new(ErrorKind::BrokenPipe, format!("passt has ended: {last}"))
    }
}

impl Drop for Passt {
    fn drop(&mut self) {
        // It ends by itself when the socket is closed, as it is if this process is killed; but not before this returns.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Backend for Passt {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn offloads(&self) -> bool {
        false
    }

    fn begin(&mut self, _: u64, mac: Mac) -> io::Result<()> {
        match self.introduce(mac) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(self.explained(error)),
            _ => Ok(()),
        }
    }

    fn receive(&mut self, mut into: Pieces<'_>) -> io::Result<usize> {
        loop {
            if let Some(frame) = self.next_frame()? {
                into.copy_in(&[&[0; header::LEN], &self.inbox[frame.clone()]]);
                return Ok(header::LEN + frame.len());
            }
            self.fill_inbox().map_err(|error| self.explained(error))?;
        }
    }

    fn send(&mut self, frame: Pieces<'_>) -> io::Result<()> {
        self.flush()?;
        let len = frame.len() - header::LEN;
        if len > LONGEST {
            return Err(ErrorKind::InvalidInput.into());
        }
        let mut prefix = (len as u32).to_be_bytes();
        let frame = frame.with_first(&mut prefix);
        let written = frame.write_to(self.socket.as_fd())?;
        if written < frame.len() {
            self.outbox = frame.copy_out(written);
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.outbox.is_empty() {
            match self.socket.write(&self.outbox) {
                Ok(count) => drop(self.outbox.drain(..count)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn has_unsent(&self) -> bool {
        !self.outbox.is_empty()
    }
}

/// A frame that says nothing but where it is from, of the ethertype for experiments.
fn introduction(mac: Mac) -> [u8; SHORTEST_ON_WIRE] {
    let mut frame = [0; SHORTEST_ON_WIRE];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&mac);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

/// passt would say so only when it has started, and to nobody.
fn check_ports(forward: &[(u16, u16)]) -> Result<()> {
    for (at, &(host, guest)) in forward.iter().enumerate() {
        let refused = |problem: &str| {
            Err(Error::config("networks", format!("forward {host} to port {guest} of the guest: {problem}")))
        };
        if host == 0 || guest == 0 {
            return refused("0 is no port");
        }
        if forward[..at].iter().any(|(other, _)| *other == host) {
            return refused("the port of the host is there twice");
        }
        TcpListener::bind((Ipv4Addr::LOCALHOST, host))
            .map_err(|source| Error::host(format!("forward port {host} of 127.0.0.1"), source))?;
    }
    Ok(())
}

#[allow(unsafe_code)]
fn spawn(
    forward: &[(u16, u16)],
    mtu: Option<u16>,
    socket: &OwnedFd,
    complaints: OwnedFd,
) -> io::Result<Child> {
    let fd = socket.as_raw_fd();
    let mut command = Command::new(PROGRAM);
    command.args(["--foreground", "--quiet", "--stderr", "--fd", &fd.to_string()]);
    // Otherwise the gateway's address leads to what listens on this host's 127.0.0.1.
    command.arg("--no-map-gw");
    for (host, guest) in forward {
        command.args(["--tcp-ports", &format!("127.0.0.1/{host}:{guest}")]);
    }
    if let Some(mtu) = mtu {
        command.args(["--mtu", &mtu.to_string()]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(complaints);
    let inherit = move || {
        // SAFETY: the descriptor is open in the parent until the child has called exec.
        let socket = unsafe { BorrowedFd::borrow_raw(fd) };
        Ok(rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::empty())?)
    };
    // SAFETY: fcntl(2) may be called between fork and exec.
    unsafe { command.pre_exec(inherit) };
    command.spawn()
}

#[cfg(test)]
#[path = "passt_tests.rs"]
mod tests;
