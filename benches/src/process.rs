//! Processes that are timed: from exec to the first byte on standard output.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{OrSay, Result};

/// Lets this process, and those it starts, go before all that are scheduled as usual.
///
/// # Errors
/// Without the privilege.
#[allow(unsafe_code)]
pub fn go_first() -> Result<()> {
    // The kernel's `struct sched_param` (include/uapi/linux/sched/types.h), and its own call: musl's refuses.
    let priority: libc::c_int = 1;
    // SAFETY: sets the calling process's own policy from a structure that lives through the call.
    let set =
        unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_FIFO, &raw const priority) };
    if set == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()).or_say("schedule as SCHED_FIFO") }
}

/// Runs a program to its end. Returns the time from exec.
///
/// # Errors
/// It cannot be started.
pub fn run_to_end(program: &Path) -> Result<Duration> {
    let start = Instant::now();
    Command::new(program).output().or_say(&format!("run {}", program.display()))?;
    Ok(start.elapsed())
}

/// Lets the kernel end a process that this thread starts, when the thread ends, by a signal too.
#[allow(unsafe_code)]
pub fn end_with_this_thread(command: &mut Command) -> &mut Command {
    let ask = || Ok(rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?);
    // SAFETY: between fork and exec one system call is made.
    unsafe { command.pre_exec(ask) }
}

/// A running process, ended with its owner.
#[derive(Debug)]
pub struct Running(Child);

impl Running {
    /// Starts it, its output in a pipe.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(command: &mut Command) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let child = command.spawn();
        Ok(Self(child.or_say(&format!("run {}", command.get_program().display()))?))
    }

    /// Starts it, to be talked to.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn talking(command: &mut Command) -> Result<(Self, ChildStdin, ChildStdout)> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().or_say(&format!("run {}", command.get_program().display()))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (input, output) = pipes.ok_or("a process without pipes")?;
        Ok((Self(child), input, output))
    }

    /// Starts it, and tells how long it took to its first byte. Without anything to do between fork and
    /// exec the standard library spawns as `vfork` does.
    ///
    /// # Errors
    /// It cannot be started, or ends without a word.
    pub fn timed(command: &mut Command) -> Result<(Self, Duration)> {
        let start = Instant::now();
        let mut running = Self::start(command)?;
        let read = running.first_byte();
        let took = start.elapsed();
        read.map_err(|error| format!("{}: {error}", command.get_program().display()))?;
        Ok((running, took))
    }

    /// Waits for a byte of its output.
    ///
    /// # Errors
    /// Its output ended before.
    pub fn first_byte(&mut self) -> Result<()> {
        match self.read(&mut [0]) {
            Ok(1) => Ok(()),
            _ => Err("the process ended without a byte of output".to_owned()),
        }
    }

    /// Its output, unless it was started without a pipe for it.
    #[must_use]
    pub fn output(&self) -> Option<&ChildStdout> {
        self.0.stdout.as_ref()
    }

    /// Asks it to end (SIGTERM), so that it cleans up, and waits for its end.
    ///
    /// # Errors
    /// It cannot be waited for.
    #[allow(unsafe_code)]
    pub fn end(mut self) -> Result<()> {
        // A process that is blocked because nobody reads its output could not end.
        drop(self.0.stdout.take());
        // SAFETY: sends a signal to a child that nobody has waited for.
        unsafe { libc::kill(self.id().cast_signed(), libc::SIGTERM) };
        self.0.wait().map(drop).or_say("wait for a process")
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Reads its output until `word` has come.
    ///
    /// # Errors
    /// Its output ended before.
    pub fn wait_for(&mut self, word: &str) -> Result<()> {
        let mut seen = Vec::new();
        let mut buffer = [0; 4096];
        while !seen.windows(word.len()).any(|window| window == word.as_bytes()) {
            match self.read(&mut buffer) {
                Ok(read @ 1..) => seen.extend_from_slice(&buffer[..read]),
                _ => return Err(format!("no {word:?} in the output: {}", String::from_utf8_lossy(&seen))),
            }
        }
        Ok(())
    }

    /// Waits until it ends by itself.
    ///
    /// # Errors
    /// It failed.
    pub fn wait(&mut self) -> Result<()> {
        let status = self.0.wait().or_say("wait for a process")?;
        if status.success() { Ok(()) } else { Err(format!("a process ended with {status}")) }
    }

    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.stdout.as_mut().map_or(Ok(0), |output| output.read(buffer))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
