//! One question on its way through the servers.
//!
//! ```text
//!   UDP to the first server ──time is over, or failure──> the next one, twice round ──> no answer
//!            └──truncated──> TCP to the same server
//! ```
//!
//! Each attempt has a socket of its own, with a port of the kernel's choice, and a number that nobody can
//! guess. The kernel passes on what comes from the server alone.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use rustix::rand::{GetRandomFlags, getrandom};
use volt_policy::{Ask, FromServer, look, query};

use super::protocol::LONGEST;
use super::servers::Servers;

/// Rounds through all servers.
const ROUNDS: usize = 2;
/// Bytes of a message's length over TCP.
const PREFIX: usize = 2;

/// The way of a message.
#[derive(Debug)]
enum Way {
    Udp,
    Tcp {
        /// Bytes that have not left.
        unsent: Vec<u8>,
        got: Vec<u8>,
    },
}

/// An attempt at a server.
#[derive(Debug)]
struct Attempt {
    socket: OwnedFd,
    way: Way,
    query: Vec<u8>,
    until: Instant,
}

/// A question.
#[derive(Debug)]
pub(super) struct Lookup {
    ask: Ask,
    servers: Servers,
    /// Attempts that were begun.
    begun: usize,
    attempt: Option<Attempt>,
    /// The device has the answer.
    pub is_answered: bool,
}

impl Lookup {
    /// Asks the first server.
    pub fn new(ask: Ask, servers: Servers, now: Instant) -> Self {
        let mut lookup = Self { ask, servers, begun: 0, attempt: None, is_answered: false };
        lookup.begin_next(now);
        lookup
    }

    /// The number of the question.
    pub fn number(&self) -> u32 {
        self.ask.number
    }

    /// Whether all servers were asked in vain.
    pub fn has_failed(&self) -> bool {
        self.attempt.is_none()
    }

    /// The socket and what it waits for.
    pub fn waits_for(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let attempt = self.attempt.as_ref()?;
        let flags = match &attempt.way {
            Way::Tcp { unsent, .. } if !unsent.is_empty() => PollFlags::OUT,
            Way::Udp | Way::Tcp { .. } => PollFlags::IN,
        };
        Some((attempt.socket.as_fd(), flags))
    }

    /// When the attempt is given up.
    pub fn until(&self) -> Option<Instant> {
        self.attempt.as_ref().map(|attempt| attempt.until)
    }

    /// Asks the next server if the time of this one is over.
    pub fn check_time(&mut self, now: Instant) {
        if self.until().is_some_and(|until| until <= now) {
            self.begin_next(now);
        }
    }

    /// Goes on, since the socket is ready. Returns the answer.
    pub fn go_on(&mut self, now: Instant) -> Option<Vec<u8>> {
        let attempt = self.attempt.as_mut()?;
        match attempt.go_on() {
            Ok(None) => None,
            Ok(Some(message)) => match look(&attempt.query, &message) {
                FromServer::Answer => Some(message),
                FromServer::Truncated if matches!(attempt.way, Way::Udp) => {
                    self.begin_tcp(now);
                    None
                }
                FromServer::Foreign if matches!(attempt.way, Way::Udp) => None,
                FromServer::Foreign | FromServer::Truncated | FromServer::Failed => {
                    self.begin_next(now);
                    None
                }
            },
            Err(_) => {
                self.begin_next(now);
                None
            }
        }
    }

    fn server(&self) -> SocketAddr {
        self.servers.addresses[(self.begun - 1) % self.servers.addresses.len()]
    }

    /// Begins an attempt at the next server that can be reached.
    fn begin_next(&mut self, now: Instant) {
        self.attempt = None;
        while self.attempt.is_none() && self.begun < ROUNDS * self.servers.addresses.len() {
            self.begun += 1;
            self.attempt = self.attempt(SocketType::DGRAM, now).ok();
        }
    }

    /// Asks the same server over TCP.
    fn begin_tcp(&mut self, now: Instant) {
        match self.attempt(SocketType::STREAM, now) {
            Ok(attempt) => self.attempt = Some(attempt),
            Err(_) => self.begin_next(now),
        }
    }

    fn attempt(&self, kind: SocketType, now: Instant) -> io::Result<Attempt> {
        let mut id = [0; 2];
        getrandom(&mut id, GetRandomFlags::empty())?;
        let query = query(u16::from_be_bytes(id), &self.ask.name, self.ask.kind);
        let query = query.ok_or(ErrorKind::InvalidInput)?;
        let server = self.server();
        let family = if server.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
        match connect(&socket, &server) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(errno) => return Err(errno.into()),
        }
        let way = match kind {
            SocketType::DGRAM => {
                rustix::io::write(&socket, &query)?;
                Way::Udp
            }
            _ => {
                let len = (query.len() as u16).to_be_bytes();
                Way::Tcp { unsent: [&len[..], &query].concat(), got: Vec::new() }
            }
        };
        Ok(Attempt { socket, way, query, until: now + self.servers.patience })
    }
}

impl Attempt {
    /// Sends or receives what is possible now. Returns a whole message.
    fn go_on(&mut self) -> io::Result<Option<Vec<u8>>> {
        match self.transfer() {
            Err(error) if [ErrorKind::WouldBlock, ErrorKind::Interrupted].contains(&error.kind()) => Ok(None),
            result => result,
        }
    }

    fn transfer(&mut self) -> io::Result<Option<Vec<u8>>> {
        match &mut self.way {
            Way::Udp => {
                let mut message = vec![0; LONGEST];
                let len = rustix::io::read(&self.socket, &mut message)?;
                message.truncate(len);
                Ok(Some(message))
            }
            Way::Tcp { unsent, .. } if !unsent.is_empty() => {
                let sent = rustix::io::write(&self.socket, &*unsent)?;
                unsent.drain(..sent);
                Ok(None)
            }
            Way::Tcp { got, .. } => {
                let mut part = [0; 4096];
                let len = rustix::io::read(&self.socket, &mut part)?;
                if len == 0 {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
                got.extend_from_slice(&part[..len]);
                let Some(prefix) = got.first_chunk::<PREFIX>() else { return Ok(None) };
                let whole = usize::from(u16::from_be_bytes(*prefix));
                if whole > LONGEST {
                    return Err(ErrorKind::InvalidData.into());
                }
                let message = got.get(PREFIX..PREFIX + whole);
                Ok(message.map(<[u8]>::to_vec))
            }
        }
    }
}
