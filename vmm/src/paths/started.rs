//! The programs that the starter started, and those that it may start.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, ExitStatus};

use super::program::{ProgramPattern, ProgramStart, block_signals, blocked_signals, command, handle_of};

/// The programs that the starter started.
#[derive(Debug, Default)]
pub(super) struct Started {
    /// Those whose status will be asked for.
    wanted: Vec<Child>,
    detached: Vec<Child>,
    allowed: Vec<ProgramPattern>,
    is_sealed: bool,
}

impl Started {
    /// Allows these programs at any time, and others before [`Started::seal`] unless these are `all`.
    pub fn allowing(programs: &[ProgramPattern], all: bool) -> Self {
        Self { allowed: programs.to_vec(), is_sealed: all, ..Self::default() }
    }

    /// Starts a program, of whose files those of a message are. Returns its number and a descriptor of it.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(&mut self, start: ProgramStart, beside: Vec<OwnedFd>) -> io::Result<(u32, OwnedFd)> {
        self.check(&start)?;
        // The program inherits the mask. This process has one thread, which blocks all signals otherwise.
        let all = blocked_signals();
        block_signals(&start.blocked);
        let child = start.join(beside).and_then(|program| command(program).spawn());
        block_signals(&all);
        let mut child = child?;
        let handle = handle_of(&mut child)?;
        let number = child.id();
        self.wanted.push(child);
        Ok((number, handle))
    }

    /// Refuses a program that was not started, or allowed, before the programs were sealed.
    fn check(&mut self, start: &ProgramStart) -> io::Result<()> {
        if self.allowed.iter().any(|allowed| allowed.allows(start)) {
            return Ok(());
        }
        if self.is_sealed {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        self.allow(ProgramPattern::of_start(start));
        Ok(())
    }

    /// Allows a program also after [`Started::seal`].
    pub fn allow(&mut self, program: ProgramPattern) {
        if !self.is_sealed {
            self.allowed.push(program);
        }
    }

    /// Allows no other programs from now on.
    pub fn seal(&mut self) {
        self.is_sealed = true;
    }

    /// Returns the status of a program that has ended.
    ///
    /// # Errors
    /// It has not ended, or was not started here.
    pub fn status_of(&mut self, pid: u32) -> io::Result<ExitStatus> {
        let at = self.place_of(pid)?;
        let mut child = self.wanted.swap_remove(at);
        match child.try_wait() {
            Ok(None) => {
                self.wanted.push(child);
                Err(io::ErrorKind::WouldBlock.into())
            }
            status => Ok(status?.ok_or(io::ErrorKind::NotFound)?),
        }
    }

    /// Notes that nobody will ask for the status of a program.
    ///
    /// # Errors
    /// It was not started here.
    pub fn detach(&mut self, pid: u32) -> io::Result<()> {
        let at = self.place_of(pid)?;
        self.detached.push(self.wanted.swap_remove(at));
        self.reap();
        Ok(())
    }

    /// Takes the statuses of detached programs that have ended, so that they do not stay zombies.
    pub fn reap(&mut self) {
        self.detached.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }

    fn place_of(&self, pid: u32) -> io::Result<usize> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        self.wanted.iter().position(|child| child.id() == pid).ok_or_else(missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::program::Program;

    fn start(started: &mut Started, program: &str, first: &str) -> io::Result<u32> {
        let program = Program::new(program).argument(first);
        let (start, _) = ProgramStart::split(&program);
        started.start(start, Vec::new()).map(|(pid, _)| pid)
    }

    #[test]
    fn sealed_starter_starts_known_programs_alone() {
        let mut started = Started::allowing(
            &[ProgramPattern::new("test", [Some("-e".as_ref()), None]).with_options(&["-a"])],
            false,
        );
        let mut start = |program: &str, arguments: &[&str]| {
            let program = Program::new(program).arguments(arguments);
            started.start(ProgramStart::split(&program).0, Vec::new()).map(drop).map_err(|error| error.kind())
        };
        start("true", &["known"]).unwrap();
        start("true", &["known"]).unwrap();
        started.allow(ProgramPattern::of(&Program::new("false").argument("allowed")));
        started.seal();
        started.allow(ProgramPattern::of(&Program::new("true").argument("late")));
        let mut start = |program: &str, arguments: &[&str]| {
            let program = Program::new(program).arguments(arguments);
            started.start(ProgramStart::split(&program).0, Vec::new()).map(drop).map_err(|error| error.kind())
        };
        start("true", &["known"]).unwrap();
        start("false", &["allowed"]).unwrap();
        start("test", &["-e", "/any"]).unwrap();
        start("test", &["-e", "/any", "-a", "value", "-a", "other"]).unwrap();
        let others: [(&str, &[&str]); 8] = [
            ("test", &["-e", "/any", "-a"]),
            ("test", &["-e", "/any", "-o", "value"]),
            ("true", &["other"]),
            ("true", &["known", "more"]),
            ("true", &["late"]),
            ("false", &["known"]),
            ("test", &["-d", "/any"]),
            ("test", &["-e"]),
        ];
        for (program, arguments) in others {
            assert_eq!(
                start(program, arguments),
                Err(io::ErrorKind::PermissionDenied),
                "{program} {arguments:?}"
            );
        }
    }

    #[test]
    fn program_of_another_name_is_another_program() {
        let mut started = Started::allowing(&[ProgramPattern::new("true", [])], true);
        let mut start = |name: Option<&str>| {
            let program = Program { name: name.map(Into::into), ..Program::new("true") };
            started.start(ProgramStart::split(&program).0, Vec::new()).map(drop).map_err(|error| error.kind())
        };
        start(None).unwrap();
        assert_eq!(start(Some("false")), Err(io::ErrorKind::PermissionDenied));
    }

    #[test]
    fn status_of_a_started_program_is_told_once() {
        let mut started = Started::default();
        let (false_one, true_one) = (start(&mut started, "false", ""), start(&mut started, "true", ""));
        let mut status = |pid: u32| loop {
            match started.status_of(pid) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::yield_now(),
                status => return status.map(|status| status.code()),
            }
        };
        assert_eq!(status(false_one.unwrap()).unwrap(), Some(1));
        let pid = true_one.unwrap();
        assert_eq!(status(pid).unwrap(), Some(0));
        assert_eq!(status(pid).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn detached_program_is_reaped() {
        let mut started = Started::default();
        let pid = start(&mut started, "true", "").unwrap();
        started.detach(pid).unwrap();
        while std::fs::exists(format!("/proc/{pid}")).unwrap() {
            started.reap();
        }
        assert!(started.detached.is_empty());
    }
}
