//! Errors of sandboxes.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use volt_agent_client as client;

/// The result of an act on a sandbox.
pub type Result<T> = std::result::Result<T, Error>;

/// A failed act. The text of each error names the act, the sandbox and the cause, so that it has no source.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The program `volt-vmm` cannot be started.
    #[error("cannot {act} sandbox {sandbox}: cannot start {}: {cause}", program.display())]
    Program {
        /// The sandbox.
        sandbox: String,
        /// The act, such as `fork`.
        act: &'static str,
        /// The program.
        program: PathBuf,
        /// The host's refusal.
        cause: io::Error,
    },
    /// The program `volt-vmm` failed, or the act cannot be asked of it.
    #[error("cannot {act} sandbox {sandbox}: {message}")]
    Refused {
        /// The sandbox.
        sandbox: String,
        /// The act, such as `fork`.
        act: &'static str,
        /// The exit status of the program. Absent if it was not started, or a signal ended it.
        status: Option<i32>,
        /// The program's messages on standard error.
        message: String,
    },
    /// The program `volt-vmm` printed what this crate does not know: it has another version.
    #[error("cannot {act} sandbox {sandbox}: {} is of another version: {problem}", program.display())]
    Version {
        /// The sandbox.
        sandbox: String,
        /// The act, such as `fork`.
        act: &'static str,
        /// The program.
        program: PathBuf,
        /// The difference.
        problem: String,
    },
    /// The agent in the guest refuses, or does not answer.
    #[error("cannot {act} in sandbox {sandbox}: {cause}")]
    Agent {
        /// The sandbox.
        sandbox: String,
        /// The act with its object, such as `run python3`.
        act: String,
        /// The agent's refusal. Its code tells a missing file or program (`not_found`).
        cause: client::Error,
    },
    /// A command ran for longer than it may. Its agent was asked to kill it.
    #[error("cannot {act} in sandbox {sandbox}: it took longer than {} s", limit.as_secs_f64())]
    TimedOut {
        /// The sandbox.
        sandbox: String,
        /// The act with its object, such as `run python3`.
        act: String,
        /// The limit.
        limit: Duration,
    },
    /// The connection broke before the end of a command, as at the end of the VM.
    #[error("cannot {act} in sandbox {sandbox}: the connection to its agent broke before the command's end")]
    Broken {
        /// The sandbox.
        sandbox: String,
        /// The act with its object, such as `run python3`.
        act: String,
    },
    /// The async runtime ended before the act.
    #[error("the runtime ended before the act on a sandbox")]
    RuntimeEnded,
}

impl Error {
    /// The failure of a call to a sandbox's agent.
    pub(crate) fn of_agent(sandbox: &str, act: &str, cause: client::Error) -> Self {
        // Each sandbox runs an image: its socket goes with the VM.
        let cause = match cause {
            client::Error::NoAgent => client::Error::NotListening,
            other => other,
        };
        Self::Agent { sandbox: sandbox.to_owned(), act: act.to_owned(), cause }
    }

    /// Whether the guest lacks the file or the program that a call names.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Agent { cause, .. } if cause.code() == Some("not_found"))
    }
}
