//! passt (<https://passt.top>): a host process that translates between the guest's frames and the host's
//! sockets, so that a network needs no privileges. One process serves one device, and ends with it.
//!
//! ```text
//!  frame, header stripped ──length, bytes──> unix stream socket ──> passt ──> sockets of the host
//! ```

use std::io::{self, ErrorKind, PipeReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use super::backend;
use super::backend::Backend;
use super::header;
use super::pieces::Pieces;
use crate::config::network::Mac;
use crate::config::user_network::{IPV4, IPV6};
use crate::error::{Error, Result};
use crate::holders;
use crate::paths;
use crate::paths::process::Process;
#[cfg(any(test, feature = "internal"))]
use crate::paths::program::ProgramPattern;
use crate::paths::program::{Program, Stream};

const PROGRAM: &str = "passt";
/// Its first arguments. The descriptor is [`crate::paths::program::DESCRIPTOR`]. Without the last one, the
/// gateway's address leads to the listeners on this host's 127.0.0.1.
const ALWAYS: [&str; 6] = ["--foreground", "--quiet", "--stderr", "--fd", "3", "--no-map-gw"];
const ADDRESS: &str = "--address";
const GATEWAY: &str = "--gateway";
const NETMASK: &str = "--netmask";
const PORTS: &str = "--tcp-ports";
const MTU: &str = "--mtu";
const DNS_FORWARD: &str = "--dns-forward";
/// Its last words on a host that leads nowhere.
const NO_ROUTE: &str = "External interface not usable";
/// Bytes of the longest frame that passt accepts or sends.
const MAX_FRAME: usize = 0xffff;
/// Bytes of the length in front of each frame.
const PREFIX: usize = 4;
/// Bytes of the shortest Ethernet frame.
const MIN_WIRE_FRAME: usize = 60;
/// Bytes read from the socket at once.
const INBOX: usize = 4 * (PREFIX + MAX_FRAME);

/// The part of passt's arguments that devices choose.
#[derive(Clone, Debug, Default)]
pub(super) struct Options {
    /// TCP ports of 127.0.0.1, and the guest's ports that they lead to.
    pub forward: Vec<(u16, u16)>,
    pub mtu: Option<u16>,
    pub dns_forward: bool,
}

/// A passt process and its stream. The process ends on drop.
#[derive(Debug)]
pub(super) struct Passt {
    options: Options,
    child: Process,
    socket: UnixStream,
    stderr_pipe: PipeReader,
    inbox: Box<[u8]>,
    /// The part of the inbox that was read from the socket and has not been delivered.
    filled: std::ops::Range<usize>,
    /// The rest of a frame that the socket took in part.
    outbox: Vec<u8>,
}

impl Passt {
    /// Starts a passt for the guest of a device, whose address is probably `mac`.
    ///
    /// # Errors
    /// [`Error::Config`] if a port cannot be forwarded; [`Error::Host`] if passt is missing or does not
    /// start.
    pub fn start(options: &Options, mac: Mac) -> Result<Self> {
        check_ports(&options.forward)?;
        let (child, socket, stderr_pipe) = connected(options)?;
        let mut passt = Self::with(options, child, socket, stderr_pipe);
        // Done before passt listens. If passt has ended already, its use shows that.
        let _ = passt.announce_mac(mac);
        Ok(passt)
    }

    /// Wraps a connected passt.
    pub(super) fn with(
        options: &Options,
        child: Process,
        socket: UnixStream,
        stderr_pipe: PipeReader,
    ) -> Self {
        let (options, inbox) = (options.clone(), vec![0; INBOX].into());
        Self { options, child, socket, stderr_pipe, inbox, filled: 0..0, outbox: Vec::new() }
    }

    /// Starts another process in place of the one that has ended.
    fn replace(&mut self, mac: Mac) -> Result<()> {
        check_ports(&self.options.forward)?;
        let (child, socket, stderr_pipe) = connected(&self.options)?;
        (self.child, self.socket, self.stderr_pipe) = (child, socket, stderr_pipe);
        self.filled = 0..0;
        self.outbox.clear();
        // As at the start.
        let _ = self.announce_mac(mac);
        Ok(())
    }

    /// Shows passt the guest's address. Before that passt broadcasts, and TCP ignores broadcasts: a restored
    /// guest that sends nothing by itself would not be reachable.
    fn announce_mac(&mut self, mac: Mac) -> io::Result<()> {
        let frame = announcement(mac);
        self.outbox.extend((frame.len() as u32).to_be_bytes());
        self.outbox.extend(frame);
        self.flush()
    }

    /// Returns the id of the process.
    #[cfg(test)]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the next frame in the inbox, if it is complete, and moves on to the one behind it.
    fn next_frame(&mut self) -> io::Result<Option<std::ops::Range<usize>>> {
        let frame = self.first_frame()?;
        if let Some(frame) = &frame {
            self.filled.start = frame.end;
        }
        Ok(frame)
    }

    /// Returns the next frame in the inbox, if it is complete.
    fn first_frame(&self) -> io::Result<Option<std::ops::Range<usize>>> {
        let filled = &self.inbox[self.filled.clone()];
        let Some((prefix, rest)) = filled.split_first_chunk::<PREFIX>() else { return Ok(None) };
        let len = u32::from_be_bytes(*prefix) as usize;
        if len > MAX_FRAME {
            return Err(io::Error::new(ErrorKind::InvalidData, "passt sent a frame of invalid length"));
        }
        if rest.len() < len {
            return Ok(None);
        }
        let from = self.filled.start + PREFIX;
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

    /// Returns an error of the socket, with passt's last message if passt has ended.
    fn explain(&mut self, error: io::Error) -> io::Error {
        if !backend::is_gone(&error) {
            return error;
        }
        let mut output = [0; 4096];
        let len = self.stderr_pipe.read(&mut output).unwrap_or(0);
        let output = String::from_utf8_lossy(&output[..len]);
        let is_message = |line: &&str| !line.trim().is_empty() && !line.contains("syslog");
        let last = output.lines().rfind(is_message).unwrap_or("it printed no message");
        let (kind, reason) = match last {
            NO_ROUTE => (ErrorKind::NotConnected, " (this host has no default route)"),
            _ => (ErrorKind::BrokenPipe, ""),
        };
        io::Error::new(kind, format!("passt has ended: {last}{reason}"))
    }
}

impl Drop for Passt {
    fn drop(&mut self) {
        // passt ends by itself when the socket is closed, also if this process is killed, but perhaps after
        // this call.
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
        match self.announce_mac(mac) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(self.explain(error)),
            _ => Ok(()),
        }
    }

    fn restart(&mut self, mac: Mac) -> Option<Result<()>> {
        // A confined thread ends no process. One that hangs, or was out of step, ends with its socket, and
        // gives its ports back. It may be late: then the next restart gets them.
        let _ = self.socket.shutdown(Shutdown::Both);
        self.child.leave();
        Some(self.replace(mac))
    }

    fn receive(&mut self, mut into: Pieces<'_>) -> io::Result<usize> {
        loop {
            if let Some(frame) = self.next_frame()? {
                into.copy_in(&[&[0; header::LEN], &self.inbox[frame.clone()]]);
                return Ok(header::LEN + frame.len());
            }
            self.fill_inbox().map_err(|error| self.explain(error))?;
        }
    }

    fn peek(&mut self) -> io::Result<Option<&[u8]>> {
        loop {
            if let Some(frame) = self.first_frame()? {
                return Ok(Some(&self.inbox[frame]));
            }
            self.fill_inbox().map_err(|error| self.explain(error))?;
        }
    }

    fn skip(&mut self) {
        let _ = self.next_frame(); // cannot fail: it was shown
    }

    fn send(&mut self, frame: Pieces<'_>) -> io::Result<()> {
        self.flush()?;
        let len = frame.len() - header::LEN;
        if len > MAX_FRAME {
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

/// Starts a passt, with a socket to it and what it prints.
///
/// # Errors
/// [`Error::Host`] if passt is missing or does not start.
fn connected(options: &Options) -> Result<(Process, UnixStream, PipeReader)> {
    let failed = |source| Error::host("start passt", source);
    let (socket, child_socket) = UnixStream::pair().map_err(failed)?;
    socket.set_nonblocking(true).map_err(failed)?;
    let (stderr_pipe, child_stderr) = io::pipe().map_err(failed)?;
    // Both ends are non-blocking: the pipe is read only after passt has ended.
    for end in [stderr_pipe.as_fd(), child_stderr.as_fd()] {
        rustix::io::ioctl_fionbio(end, true).map_err(|source| failed(source.into()))?;
    }
    let child = spawn(options, child_socket.into(), child_stderr.into()).map_err(|source| {
        let missing = source.kind() == ErrorKind::NotFound;
        let advice = match missing {
            true => ": install it (Debian's package is passt), or give the interface another network (--net)",
            false => "",
        };
        Error::host(format!("start passt{advice}"), source)
    })?;
    Ok((child, socket, stderr_pipe))
}

/// Returns a frame that shows nothing but its sender, with the ethertype for experiments.
fn announcement(mac: Mac) -> [u8; MIN_WIRE_FRAME] {
    let mut frame = [0; MIN_WIRE_FRAME];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&mac);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

/// Checks that the host's ports are free, because passt would report one in use only after its start.
fn check_ports(forward: &[(u16, u16)]) -> Result<()> {
    for (host, _) in forward {
        paths::check_port(*host).map_err(|source| {
            let act = format!("forward port {host} of 127.0.0.1");
            let cause = match source.kind() {
                io::ErrorKind::AddrInUse => {
                    let holder = holders::named(paths::holder_of_port(*host));
                    format!(": another process listens there{holder}, and no two can")
                }
                _ => String::new(),
            };
            Error::host(act + &cause, source)
        })?;
    }
    Ok(())
}

/// The pattern of every passt that a device starts.
#[cfg(any(test, feature = "internal"))]
pub fn pattern() -> ProgramPattern {
    let first = first_arguments();
    ProgramPattern::new(PROGRAM, first.iter().map(|argument| Some(argument.as_ref()))).with_options(&[
        PORTS,
        MTU,
        DNS_FORWARD,
    ])
}

/// The arguments of every passt. It ignores those of a version of IP that the host has no route for.
fn first_arguments() -> Vec<String> {
    let of_network = [
        (ADDRESS, IPV4.address.to_string()),
        (NETMASK, IPV4.prefix.to_string()),
        (GATEWAY, IPV4.gateway.to_string()),
        (ADDRESS, IPV6.address.to_string()),
        (GATEWAY, IPV6.gateway.to_string()),
    ];
    let of_network = of_network.into_iter().flat_map(|(option, value)| [option.to_owned(), value]);
    ALWAYS.into_iter().map(str::to_owned).chain(of_network).collect()
}

fn arguments(options: &Options) -> Vec<String> {
    let ports = options.forward.iter().map(|(host, guest)| (PORTS, format!("127.0.0.1/{host}:{guest}")));
    let mtu = options.mtu.map(|mtu| (MTU, mtu.to_string()));
    let resolvers = [IPV4.resolver.to_string(), IPV6.resolver.to_string()];
    let resolvers =
        resolvers.into_iter().filter(|_| options.dns_forward).map(|address| (DNS_FORWARD, address));
    let chosen = ports.chain(mtu).chain(resolvers).flat_map(|(option, value)| [option.to_owned(), value]);
    first_arguments().into_iter().chain(chosen).collect()
}

fn spawn(options: &Options, socket: OwnedFd, stderr_pipe: OwnedFd) -> io::Result<Process> {
    let passt = Program::new(PROGRAM).arguments(arguments(options));
    Program { descriptor: Some(socket), stderr: Stream::File(stderr_pipe), ..passt }.start()
}

#[cfg(test)]
#[path = "passt_tests.rs"]
mod tests;
