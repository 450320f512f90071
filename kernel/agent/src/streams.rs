//! Pipes and terminals between a program and the agent.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Command, Stdio};

use rustix::fs::{Uid, fchown};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// The agent's side.
#[derive(Debug)]
pub enum Ours {
    /// The controlling side of a terminal.
    Terminal(OwnedFd),
    /// Pipes.
    Pipes {
        /// The standard input, unless the program has none or it is closed.
        stdin: Option<OwnedFd>,
        /// The standard output.
        stdout: OwnedFd,
        /// The standard error output.
        stderr: OwnedFd,
    },
}

/// The program's side.
#[derive(Debug)]
pub struct Theirs {
    stdin: Stdio,
    stdout: Stdio,
    stderr: Stdio,
}

impl Theirs {
    /// Gives the streams to a program.
    pub fn give(self, command: &mut Command) {
        command.stdin(self.stdin).stdout(self.stdout).stderr(self.stderr);
    }
}

impl Ours {
    /// All descriptors, in the order in which [`Self::of`] takes them.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Self::Terminal(terminal) => vec![terminal.as_fd()],
            Self::Pipes { stdin, stdout, stderr } => {
                [stdout, stderr].into_iter().chain(stdin).map(AsFd::as_fd).collect()
            }
        }
    }

    /// Puts descriptors together again.
    pub fn of(is_terminal: bool, descriptors: Vec<OwnedFd>) -> Option<Self> {
        let mut descriptors = descriptors.into_iter();
        let first = descriptors.next()?;
        if is_terminal {
            return Some(Self::Terminal(first));
        }
        Some(Self::Pipes { stdout: first, stderr: descriptors.next()?, stdin: descriptors.next() })
    }
}

/// Makes pipes. The program's user owns them, and so opens `/dev/stdout` once more.
pub fn pipes(with_input: bool, user: u32) -> io::Result<(Ours, Theirs)> {
    let (stdout, their_stdout) = pipe_with(PipeFlags::CLOEXEC)?;
    let (stderr, their_stderr) = pipe_with(PipeFlags::CLOEXEC)?;
    give_to(&their_stdout, user);
    give_to(&their_stderr, user);
    let (their_stdin, stdin) = if with_input {
        let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)?;
        give_to(&theirs, user);
        (Stdio::from(theirs), Some(ours))
    } else {
        (Stdio::null(), None)
    };
    let theirs =
        Theirs { stdin: their_stdin, stdout: Stdio::from(their_stdout), stderr: Stdio::from(their_stderr) };
    Ok((Ours::Pipes { stdin, stdout, stderr }, theirs))
}

/// Makes a terminal that the program's user owns.
pub fn terminal(size: Winsize, user: u32) -> io::Result<(Ours, Theirs)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = openpt(flags)?;
    unlockpt(&ours)?;
    // It needs no path, so it works where /dev/pts is not mounted.
    let theirs = ioctl_tiocgptpeer(&ours, flags)?;
    give_to(&theirs, user);
    tcsetwinsize(&ours, size)?;
    let theirs = Theirs {
        stdin: Stdio::from(theirs.try_clone()?),
        stdout: Stdio::from(theirs.try_clone()?),
        stderr: Stdio::from(theirs),
    };
    Ok((Ours::Terminal(ours), theirs))
}

/// An agent without the right to give files away starts programs as itself alone.
fn give_to(stream: &OwnedFd, user: u32) {
    let _ = fchown(stream, Some(Uid::from_raw(user)), None);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sent_descriptors_are_put_together_again() {
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        for (made, count, is_terminal) in [
            (pipes(true, 0).unwrap(), 3, false),
            (pipes(false, 0).unwrap(), 2, false),
            (terminal(size, 0).unwrap(), 1, true),
        ] {
            let (ours, _theirs) = made;
            let sent: Vec<_> =
                ours.descriptors().iter().map(|sent| sent.try_clone_to_owned().unwrap()).collect();
            assert_eq!(sent.len(), count);
            let found = Ours::of(is_terminal, sent).unwrap();
            assert_eq!(found.descriptors().len(), count);
        }
        assert!(Ours::of(false, Vec::new()).is_none());
    }

    #[test]
    fn streams_belong_to_the_user_of_the_program() {
        // Only root gives files away.
        let user = if rustix::process::geteuid().is_root() { 54_321 } else { return };
        let (Ours::Pipes { stdin: Some(stdin), stdout, stderr }, _theirs) = pipes(true, user).unwrap() else {
            panic!("pipes are no terminal");
        };
        for pipe in [stdin, stdout, stderr] {
            assert_eq!(rustix::fs::fstat(pipe).unwrap().st_uid, user);
        }
    }
}
