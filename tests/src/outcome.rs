//! Outcomes of `volt-vmm` runs.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::patience::{limited, patience};
use crate::program::binary;
use crate::progress::without_progress;
use crate::transcript::Transcript;

/// The exit status and output of a process.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Exit status; -N when signal N killed it.
    pub status: i32,
    /// All of standard output.
    pub stdout: String,
    /// All of standard error.
    pub stderr: String,
}

impl Outcome {
    /// Runs `volt-vmm` with these arguments to its end.
    ///
    /// # Panics
    /// The command cannot be started, or does not end.
    #[must_use]
    pub fn of<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Self {
        let mut command = Command::new(binary());
        command.args(arguments);
        Self::of_command(&mut command)
    }

    /// Runs any command to its end, without input.
    ///
    /// # Panics
    /// The command cannot be started, or does not end.
    #[must_use]
    pub fn of_command(command: &mut Command) -> Self {
        Self::of_command_within(command, patience())
    }

    /// Runs a command that must be refused.
    ///
    /// # Panics
    /// As [`Outcome::of_command`]. Also as soon as a guest says something, because the test would wait for
    /// its end.
    #[must_use]
    pub fn of_refusal(command: &mut Command) -> Self {
        Self::run(command, patience(), |said| {
            assert!(said.is_empty(), "not refused: a guest runs and says {said:?}")
        })
    }

    /// Runs a command with a longer limit than [`Outcome::of_command`].
    ///
    /// # Panics
    /// As [`Outcome::of_command`].
    #[must_use]
    pub fn of_command_within(command: &mut Command, limit: Duration) -> Self {
        Self::run(command, limit, |_| ())
    }

    /// Runs a command. `check` gets standard output so far and panics if it must not be there.
    fn run(command: &mut Command, limit: Duration, check: impl Fn(&str)) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let stdout = Transcript::of(child.stdout.take().expect("a pipe"));
        let stderr = Transcript::of(child.stderr.take().expect("a pipe"));
        let start = Instant::now();
        let mut child = Killed(child);
        let status = loop {
            if let Some(status) = child.0.try_wait().expect("wait for a child") {
                break status;
            }
            check(&stdout.text());
            let (said, complained) = (stdout.text(), stderr.text());
            assert!(
                start.elapsed() <= limit,
                "{command:?} does not end within {limit:?}:\n{said}\n{complained}"
            );
            std::thread::sleep(Duration::from_millis(2));
        };
        stdout.wait_end();
        stderr.wait_end();
        Self { status: number(status), stdout: stdout.text(), stderr: stderr.text() }
    }

    /// Checks that the command succeeded.
    ///
    /// # Panics
    /// The command failed.
    pub fn succeeded(&self) -> &Self {
        assert_eq!(self.status, 0, "{self:?}");
        self
    }

    /// Returns standard error without lines of progress, which a slow host adds to any step.
    #[must_use]
    pub fn messages(&self) -> String {
        without_progress(&self.stderr)
    }

    /// Checks that bad input was refused: status 1, one line of error with all of `words`, no output of a
    /// guest, no sign of a crash.
    ///
    /// # Panics
    /// The command was not refused like that.
    pub fn refused(&self, words: &[&str]) -> &Self {
        assert_eq!(self.status, 1, "{self:?}");
        self.failed_with(words);
        assert_eq!(self.stdout, "", "a guest ran");
        self
    }

    /// Checks the error, but not the status. Lines of progress before the error do not count.
    ///
    /// # Panics
    /// The error is not one line of volt-vmm's with all of `words`.
    pub fn failed_with(&self, words: &[&str]) -> &Self {
        let messages = self.messages();
        let error = messages.trim_end();
        assert!(
            error.starts_with("volt-vmm: ") && error.lines().count() == 1,
            "not one line of error: {self:?}"
        );
        for word in words.iter().copied() {
            assert!(error.contains(word), "no {word:?} in {error:?}");
        }
        for crash in ["panicked", "backtrace", "unwrap", "bug"] {
            assert!(!error.contains(crash), "{error}");
        }
        self
    }
}

/// A process that is killed on drop.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // Both calls fail if the process has ended.
        let _ = self.0.kill();
        let _ = limited("a killed child is gone", || self.0.wait());
    }
}

/// Returns the exit status as a shell shows it, or the negative number of a signal.
pub(crate) fn number(status: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().unwrap_or_else(|| -status.signal().unwrap_or(0))
}
