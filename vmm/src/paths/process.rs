//! Other programs that run for this process.
//!
//! A confined thread may not call execve(2). It asks the starter, a process beside this one, to start the
//! program, and to tell its status when it has ended.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, WaitOptions, pidfd_send_signal, waitpid};

use super::program::{Program, ProgramPattern, ProgramStart, command, handle_of};
use super::{asks, opener};

impl Program {
    /// Starts it.
    ///
    /// # Errors
    /// The host refuses.
    pub fn start(self) -> io::Result<Process> {
        if asks() {
            let (start, beside) = ProgramStart::split(&self);
            let (pid, handle) = opener::start_program(start, &beside)?;
            return Process::of(pid, handle, true);
        }
        self.allow();
        let mut child = command(self).spawn()?;
        let handle = handle_of(&mut child)?;
        Process::of(child.id(), handle, false)
    }

    /// Allows it, with these arguments, also after the guest runs, if the process is confined.
    pub fn allow(&self) {
        opener::allow_program(ProgramPattern::of(self));
    }
}

/// A running program. Dropping it leaves the process to itself, as with [`std::process::Child`].
#[derive(Debug)]
pub struct Process {
    pid: Pid,
    /// Refers to the process even after its number is another's.
    handle: OwnedFd,
    /// Whether it is a child of the starter.
    is_starters: bool,
    ended: Option<ExitStatus>,
}

impl Process {
    fn of(pid: u32, handle: OwnedFd, is_starters: bool) -> io::Result<Self> {
        let pid = Pid::from_raw(pid.cast_signed()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { pid, handle, is_starters, ended: None })
    }

    /// Returns its number in the starter's namespace.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().cast_unsigned()
    }

    /// Returns its status if it has ended.
    ///
    /// # Errors
    /// Another part of the program has waited for it.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.ended.is_none() && self.has_ended(Some(&Timespec::default()))? {
            self.ended = Some(self.status()?);
        }
        Ok(self.ended)
    }

    /// Ends it, or lets it end by itself where the calling thread is confined. A device's confined thread may
    /// wait for no child of its own process: one from before the confinement stays a zombie until this
    /// process ends.
    pub fn leave(&mut self) {
        if self.is_starters {
            // Without a starter, the system takes the status.
            let _ = opener::detach(self.id());
        } else if !asks() {
            let _ = self.kill().and_then(|()| self.wait());
        }
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// As [`Process::try_wait`].
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.ended {
            return Ok(status);
        }
        while !self.has_ended(None)? {}
        let status = self.status()?;
        self.ended = Some(status);
        Ok(status)
    }

    /// Waits at most `limit` for its end.
    fn has_ended(&self, limit: Option<&Timespec>) -> io::Result<bool> {
        let mut ready = [PollFd::new(&self.handle, PollFlags::IN)];
        Ok(retry_on_intr(|| poll(&mut ready, limit))? > 0)
    }

    /// Takes the status of the process, which has ended.
    fn status(&self) -> io::Result<ExitStatus> {
        if self.is_starters {
            return opener::status_of(self.id());
        }
        match retry_on_intr(|| waitpid(Some(self.pid), WaitOptions::empty()))? {
            Some((_, status)) => Ok(ExitStatus::from_raw(status.as_raw())),
            None => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Leaves the process to itself. Returns it if this process is its parent, which must take its status.
    #[must_use]
    #[cfg(any(test, feature = "internal"))]
    pub fn detach(mut self) -> Option<Self> {
        if !self.is_starters {
            return Some(self);
        }
        self.leave();
        None
    }

    /// Ends it at once. One that has ended is no error.
    ///
    /// # Errors
    /// The host refuses.
    pub fn kill(&self) -> io::Result<()> {
        match pidfd_send_signal(&self.handle, Signal::KILL) {
            Err(rustix::io::Errno::SRCH) | Ok(()) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::program::Stream;

    #[test]
    fn program_finds_its_descriptor_and_streams_and_tells_its_status() {
        let (mut output, into) = io::pipe().unwrap();
        let (mut beside, descriptor) = io::pipe().unwrap();
        let shell = Program::new("sh").arguments(["-c", "echo said; echo beside >&3; exit 7"]);
        let streams =
            Program { stdout: Stream::File(into.into()), descriptor: Some(descriptor.into()), ..shell };
        let mut process = streams.start().unwrap();
        assert_eq!(process.wait().unwrap().code(), Some(7));
        assert_eq!(process.try_wait().unwrap().unwrap().code(), Some(7));
        assert_eq!(io::read_to_string(&mut output).unwrap(), "said\n");
        assert_eq!(io::read_to_string(&mut beside).unwrap(), "beside\n");
        let mut endless = Program::new("sleep").argument("1000").start().unwrap();
        assert!(endless.try_wait().unwrap().is_none());
        endless.kill().unwrap();
        assert_eq!(endless.wait().unwrap().signal(), Some(libc::SIGKILL));
    }
}
