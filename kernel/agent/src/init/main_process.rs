//! The main process that the agent asks for.

use std::os::fd::OwnedFd;

use rustix::process::Pid;
use rustix::system::uname;
use rustix::termios::Winsize;
use volt_job::{Ended, StartMain};

use super::process;
use crate::link::Running;
use crate::streams::{self, Ours};

/// The host name of a kernel that got none.
const NO_NAME: &str = "(none)";

/// The running process, and duplicates of the agent's side of its streams. With them it outlives an agent.
pub(super) struct Kept {
    pub(super) running: Running,
    pub(super) ours: Ours,
}

impl Kept {
    /// Drops the standard input, so that its end reaches the process.
    pub(super) fn close_stdin(&mut self) {
        if let Ours::Pipes { stdin, .. } = &mut self.ours {
            drop::<Option<OwnedFd>>(stdin.take());
        }
    }
}

/// The VM's name, which it may have got since it booted.
pub(super) fn hostname() -> Option<String> {
    let names = uname();
    names.nodename().to_str().ok().filter(|name| *name != NO_NAME).map(str::to_owned)
}

/// Starts the process.
pub(super) fn start(start: StartMain) -> Result<(Pid, Kept), Ended> {
    let StartMain { process, size, .. } = start;
    let size = size.unwrap_or_default();
    let size = Winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 };
    let mut kept = None;
    let pid = process::start(&process, hostname().as_deref(), |command, user| {
        let made = match process.terminal {
            true => streams::terminal(size, user),
            false => streams::pipes(process.stdin, user),
        };
        let (ours, theirs) = made.map_err(|error| format!("cannot make the process's streams: {error}"))?;
        theirs.give(command);
        kept = Some(ours);
        Ok(())
    })?;
    let ours = kept.expect("a process that has started has streams");
    let pid_number = pid.as_raw_nonzero().get().cast_unsigned();
    Ok((pid, Kept { running: Running { pid: pid_number, process }, ours }))
}
