//! Reaches a pager: connects, starts a pager if none runs, and asks for a base and for service. No step waits
//! beyond its deadline.

use std::fs::File;
use std::io::{self, PipeReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::SendFlags;

use super::message::{PagerRequest, PagerResponse, VERSION};
use super::options::{PagerOptions, deadline_after};
use super::place::PagerPlace;
use crate::error::{Error, Result};
use crate::memory::lazy::faults::Faults;
use crate::packets::{receive_until, send};
use crate::paths::process::Process;
#[cfg(any(test, feature = "internal"))]
use crate::paths::program::ProgramPattern;
use crate::paths::program::{Program, Stream};
use crate::paths::{self, PagerSocket};
use crate::sockets::peer_of;
use crate::sync::lock;

/// Time between two attempts to reach a starting pager.
pub(super) const PAUSE: Duration = Duration::from_millis(2);
/// Time between two started pagers, at first. It grows with each.
const BETWEEN_STARTS: Duration = Duration::from_millis(50);
/// Longest message taken from a pager that cannot start, in bytes.
const LONGEST_COMPLAINT: u64 = 4096;

/// Reason why a VM is not served.
pub(super) enum NotServed {
    /// The pager refused or ended the connection. It does not act on the VM's memory.
    Refused(Error),
    /// The pager has not answered. It may serve the VM.
    Unknown(Error),
}

/// A pager that this process has started.
#[derive(Debug)]
pub(super) struct StartedPager {
    process: Process,
    /// Its standard error.
    complaint: PipeReader,
}

/// The pager that a VM needs.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) options: PagerOptions,
    pub(super) place: PagerPlace,
    pub(super) pack: File,
    /// Name of the pack in errors.
    pub(super) name: PathBuf,
    pub(super) memory_len: u64,
    pub(super) base: OnceLock<Arc<File>>,
    /// The pagers that this process has started and must wait for.
    pub(super) started: Mutex<Vec<StartedPager>>,
}

const DIRECTORY: &str = "--pager-dir";
const GROUP: &str = "--pager-group";

/// The pattern of every pager that a VM starts from this program.
#[cfg(any(test, feature = "internal"))]
pub fn pattern(program: &str) -> ProgramPattern {
    let [pager, on_stdin, name, directory] =
        ["pager", "--pack-on-stdin", "--name", DIRECTORY].map(|argument| Some(argument.as_ref()));
    ProgramPattern::new(program, [pager, on_stdin, name, None, directory, None]).with_options(&[GROUP])
}

impl Target {
    /// The program of a pager, without its streams.
    pub(super) fn program(&self) -> Program {
        Program::new(&self.options.program)
            .arguments(["pager", "--pack-on-stdin", "--name"])
            .argument(&self.name)
            .argument(DIRECTORY)
            .argument(&self.options.directory)
            .arguments(self.options.group.iter().flat_map(|group| [GROUP, group]))
    }

    /// End of a wait that starts now.
    pub(super) fn deadline(&self) -> Instant {
        deadline_after(self.options.patience)
    }

    /// Connects and gets the base. Starts a pager if none runs.
    pub(super) fn reach(&self, deadline: Instant) -> Result<OwnedFd> {
        // Pauses between starts: a pager that is about to listen needs the processor.
        let (mut next_start, mut pause) = (Instant::now(), BETWEEN_STARTS);
        loop {
            let tried = self
                .connect()
                .and_then(|socket| self.ask_for_base(&socket, deadline).map(|base| (socket, base)));
            let error = match tried {
                Ok((socket, base)) => {
                    self.base.get_or_init(|| Arc::new(base));
                    return Ok(socket);
                }
                Err(error) => error,
            };
            let failed = |source| Error::file("reach the pager at", self.place.socket().display(), source);
            let nobody_starts = self.started_ended()?;
            match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                    if Instant::now() >= next_start && nobody_starts && !self.place.is_claimed() =>
                {
                    self.start()?;
                    next_start = Instant::now() + pause;
                    pause *= 2;
                }
                // The pager's own answer, which would not change.
                io::ErrorKind::Other | io::ErrorKind::InvalidData => return Err(failed(error)),
                _ if Instant::now() > deadline => return Err(failed(self.explained(error))),
                // The pager is ending and has not removed its socket, or it is starting.
                _ => thread::sleep(PAUSE),
            }
        }
    }

    /// Gives a timeout its likely reason.
    fn explained(&self, error: io::Error) -> io::Error {
        match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => self.silent(),
            _ => error,
        }
    }

    /// The error for a pager that does not answer.
    pub(super) fn silent(&self) -> io::Error {
        let patience = self.options.patience.as_secs_f32();
        let why = format!("it has not answered for {patience} s: it is stopped, or its host is overloaded");
        io::Error::new(io::ErrorKind::TimedOut, why)
    }

    fn connect(&self) -> io::Result<OwnedFd> {
        let socket = paths::connect_to_pager(&self.place.socket(), PagerSocket::Packets)?;
        let own = rustix::process::geteuid().as_raw();
        match peer_of(&socket)?.user == own {
            true => Ok(socket),
            false => Err(io::Error::other("another user owns its socket")),
        }
    }

    fn ask_for_base(&self, socket: &OwnedFd, deadline: Instant) -> io::Result<File> {
        let ask = PagerRequest::Base { version: VERSION, memory_len: self.memory_len };
        let brought = self.base.get().map(|base| base.as_fd());
        let asked = send(socket, &ask, brought, SendFlags::DONTWAIT);
        let answer = match receive_until::<PagerResponse>(socket, deadline) {
            // A pager that refuses without reading ends the connection, and the kernel reports the end before
            // the answer.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                receive_until::<PagerResponse>(socket, deadline)
            }
            other => other,
        };
        match answer? {
            Some((PagerResponse::Refused(why), _)) => Err(io::Error::other(why)),
            Some((PagerResponse::Done, Some(base))) => asked.map(|()| base.into()),
            Some((PagerResponse::Done, None)) => Err(Errno::MFILE.into()),
            Some(_) => Err(io::Error::other("its answer does not fit the request")),
            None => Err(io::ErrorKind::ConnectionReset.into()),
        }
    }

    /// Asks the pager to answer a VM's faults.
    pub(super) fn serve(
        &self,
        socket: &OwnedFd,
        faults: &Faults,
        deadline: Instant,
    ) -> std::result::Result<(), NotServed> {
        use NotServed::{Refused, Unknown};
        let failed = |source| {
            Error::file("be served by the pager at", self.place.socket().display(), self.explained(source))
        };
        let ask = PagerRequest::Serve { start: faults.start(), len: faults.len() };
        send(socket, &ask, Some(faults.userfault().as_fd()), SendFlags::DONTWAIT)
            .map_err(|error| Refused(failed(error)))?;
        loop {
            let heard = receive_until::<PagerResponse>(socket, deadline);
            return match heard.map_err(|error| Unknown(failed(error)))? {
                Some((PagerResponse::Done, _)) => Ok(()),
                Some((PagerResponse::Refused(why), _)) => Err(Refused(failed(io::Error::other(why)))),
                Some((
                    PagerResponse::Fetched { .. } | PagerResponse::NotPrefetched(_) | PagerResponse::Alive,
                    _,
                )) => Err(Unknown(failed(io::Error::other("its answer does not fit the request")))),
                // A fault that the pager handled before this request.
                Some((PagerResponse::Unreadable { start, end, why }, _)) => {
                    faults.fail(&why);
                    faults.refuse(start..end);
                    continue;
                }
                None => Err(Refused(failed(io::ErrorKind::ConnectionReset.into()))),
            };
        }
    }

    /// Starts a pager, which outlives this process. The pack is its standard input, because the name may
    /// belong to another file by now.
    fn start(&self) -> Result<()> {
        let failed = |source| Error::file("start the pager", self.options.program.display(), source);
        let pack = self.pack.try_clone().map_err(failed)?;
        // For its reason if it cannot start. It closes the pipe once it listens.
        let (complaint, stderr) = io::pipe().map_err(failed)?;
        let (stdin, stderr) = (Stream::File(pack.into()), Stream::File(stderr.into()));
        let process = Program { stdin, stderr, ..self.program() }.start().map_err(failed)?;
        lock(&self.started).push(StartedPager { process, complaint });
        Ok(())
    }

    /// Whether all pagers that this process started have ended. Leaves no zombies.
    ///
    /// # Errors
    /// A pager could not start: its message.
    pub(super) fn started_ended(&self) -> Result<bool> {
        let mut started = lock(&self.started);
        let mut complaint = None;
        started.retain_mut(|pager| match pager.process.try_wait() {
            Ok(None) => true,
            Ok(Some(status)) => {
                if !status.success() && complaint.is_none() {
                    let mut said = Vec::new();
                    let _ = (&pager.complaint).take(LONGEST_COMPLAINT).read_to_end(&mut said);
                    complaint = Some((status, String::from_utf8_lossy(&said).trim().to_owned()));
                }
                false
            }
            Err(_) => false,
        });
        match complaint {
            None => Ok(started.is_empty()),
            Some((status, said)) => {
                let why = if said.is_empty() { "it printed no message" } else { &said };
                let source = io::Error::other(format!("it ended with {status}: {why}"));
                Err(Error::file("start the pager", self.options.program.display(), source))
            }
        }
    }
}
