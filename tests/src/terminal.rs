//! A pseudo-terminal: the test holds one end, volt-vmm has the other as its terminal.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, tcgetattr};

/// A terminal.
#[derive(Debug)]
pub struct Terminal {
    controller: OwnedFd,
    user: OwnedFd,
}

impl Terminal {
    /// A new one, in the modes that terminals start with.
    ///
    /// # Panics
    /// The host has none.
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

    /// The modes it is in now, as text: to be compared.
    ///
    /// # Panics
    /// They cannot be read.
    #[must_use]
    pub fn modes(&self) -> String {
        let Termios { input_modes, output_modes, control_modes, local_modes, special_codes, .. } =
            tcgetattr(&self.user).expect("read a terminal's modes");
        format!("{input_modes:?} {output_modes:?} {control_modes:?} {local_modes:?} {special_codes:?}")
    }

    /// Makes it the controlling terminal of a command, and its standard input and output. (Its messages come
    /// apart, so that they do not get between the guest's.)
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

    /// The test's end, to type and to read.
    pub(crate) fn end(&self) -> File {
        self.controller.try_clone().expect("duplicate a terminal").into()
    }
}
