//! The console: process 1's standard input, output and error.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{Uid, fchown};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use rustix::termios::{Action, InputModes, OptionalActions, tcflow, tcgetattr, tcsetattr};
use volt_job::job::Process;

use super::system;

/// How long the last output may take to leave the console.
const PATIENCE: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(1);

/// Opens the console.
pub(super) fn device() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open("/dev/console")
}

/// Makes the console standard input, output and error. A kernel that was started without `console=` has none,
/// and messages of process 1 go nowhere.
pub(super) fn open() {
    let file = device().or_else(|_| OpenOptions::new().read(true).write(true).open("/dev/null"));
    if let Ok(file) = file {
        let _ = dup2_stdin(&file).and(dup2_stdout(&file)).and(dup2_stderr(&file));
    }
}

/// Connects the main process's input and output to the console, or to `/dev/null`. Its user may open
/// them once more, as `/dev/stdout`.
pub(super) fn redirect(command: &mut Command, process: &Process, user: u32) -> Result<(), String> {
    connect(command, process, user).map_err(|error| format!("cannot open /dev/console: {error}"))
}

fn connect(command: &mut Command, process: &Process, user: u32) -> io::Result<()> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if process.console || process.terminal {
        let device = match device() {
            // A kernel that was started without `console=` has none.
            Err(_) if !process.terminal => return Ok(()),
            device => device?,
        };
        fchown(&device, Some(Uid::from_raw(user)), None)?;
        if process.terminal {
            command.stdin(device.try_clone()?);
        }
        command.stdout(device.try_clone()?).stderr(device);
    }
    Ok(())
}

/// Writes one line. A failed write has no other place for its report.
pub(super) fn line(text: &str) {
    let mut output = io::stdout().lock();
    let _ = output.write_all(format!("{text}\n").as_bytes()).and_then(|()| output.flush());
}

/// Writes one line of process 1's own.
pub(super) fn say(text: &str) {
    line(&format!("volt-init: {text}"));
}

/// Resumes output that a user has stopped with Ctrl-S, and lets no key stop it again.
pub(super) fn release() {
    if let Ok(mut settings) = tcgetattr(io::stdout()) {
        settings.input_modes -= InputModes::IXON;
        let _ = tcsetattr(io::stdout(), OptionalActions::Now, &settings);
    }
    let _ = tcflow(io::stdout(), Action::OOn);
}

/// Waits until all output has left the console, or for as long as that may take.
pub(super) fn drain() {
    let deadline = Instant::now() + PATIENCE;
    while system::unsent(io::stdout()) > 0 && Instant::now() < deadline {
        sleep(STEP);
    }
}
