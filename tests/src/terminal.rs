//! Pseudo-terminals: the test has one end, and the other is volt-vmm's terminal.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, tcgetattr};

/// A pseudo-terminal.
#[derive(Debug)]
pub struct Terminal {
    controller: OwnedFd,
    user: OwnedFd,
}

impl Terminal {
    /// Opens one in the default modes.
    ///
    /// # Panics
    /// The host has no pseudo-terminals.
    #[must_use]
    pub fn open() -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let controller = openpt(flags).expect("open a pseudo-terminal");
        grantpt(&controller).and_then(|()| unlockpt(&controller)).expect("unlock a pseudo-terminal");
        let name = ptsname(&controller, Vec::new()).expect("a pseudo-terminal has a name");
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
        let user = rustix::fs::open(&name, flags, rustix::fs::Mode::empty()).expect("open its other end");
        Self { controller, user }
    }

    /// Returns the current modes as text, for comparisons.
    ///
    /// # Panics
    /// The modes cannot be read.
    #[must_use]
    pub fn modes(&self) -> String {
        let Termios { input_modes, output_modes, control_modes, local_modes, special_codes, .. } =
            tcgetattr(&self.user).expect("read a terminal's modes");
        format!("{input_modes:?} {output_modes:?} {control_modes:?} {local_modes:?} {special_codes:?}")
    }

    /// Makes the terminal the controlling terminal, standard input and standard output of a command. Messages
    /// come separately, so they do not mix with the guest's output.
    pub(crate) fn own<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let stream = || self.user.try_clone().expect("duplicate a terminal");
        command.stdin(stream()).stdout(stream());
        let become_leader = || {
            rustix::process::setsid()?;
            rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
            Ok(())
        };
        // SAFETY: between fork and exec only two system calls are made.
        unsafe { command.pre_exec(become_leader) }
    }

    /// Returns the test's end, to type and to read.
    pub(crate) fn end(&self) -> File {
        self.controller.try_clone().expect("duplicate a terminal").into()
    }
}
