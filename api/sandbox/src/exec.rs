//! A command in a sandbox, before it runs.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::time::Duration;

use volt_agent_client::{Agent, Command};

use crate::face::Blocking;

/// A command for a sandbox, from [`Sandbox::exec`](crate::Sandbox::exec). It runs at [`Exec::output`] or
/// [`Exec::spawn`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Exec<Face = Blocking> {
    pub(crate) agent: Agent,
    pub(crate) sandbox: String,
    pub(crate) command: Command,
    /// The whole input.
    pub(crate) input: Option<Vec<u8>>,
    pub(crate) limit: Option<Duration>,
    face: PhantomData<Face>,
}

/// The result of a command that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The exit status; 128 and the signal's number after a signal.
    pub status: u8,
    /// All bytes of the standard output.
    pub stdout: Vec<u8>,
    /// All bytes of standard error.
    pub stderr: Vec<u8>,
}

impl<Face> Exec<Face> {
    pub(crate) fn new(agent: Agent, sandbox: &str, argv: Vec<String>, env: BTreeMap<String, String>) -> Self {
        let command = Command { argv, env, cwd: None, user: None, terminal: None, has_input: false };
        Self { agent, sandbox: sandbox.to_owned(), command, input: None, limit: None, face: PhantomData }
    }

    /// The same command with acts of another kind.
    #[cfg(feature = "tokio")]
    pub(crate) fn with_face<Other>(self) -> Exec<Other> {
        let Self { agent, sandbox, command, input, limit, .. } = self;
        Exec { agent, sandbox, command, input, limit, face: PhantomData }
    }

    /// Sets a variable.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.command.env.insert(name.into(), value.into());
        self
    }

    /// Sets the working directory.
    pub fn cwd(mut self, directory: impl Into<String>) -> Self {
        self.command.cwd = Some(directory.into());
        self
    }

    /// Sets the user: `USER[:GROUP]`, names of the image or numbers.
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.command.user = Some(user.into());
        self
    }

    /// Gives the command these bytes as its whole standard input. It has none otherwise. They are sent while
    /// the output is followed.
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.input = Some(bytes.into());
        self
    }

    /// Kills the command and its process group once it has run for this time. There is no limit otherwise.
    ///
    /// It holds while the output is followed, as [`Exec::output`] does. The call takes up to 20 s longer if
    /// the agent does not answer.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }
}

impl Output {
    /// The standard output as text, without blanks at both ends. Bytes that are no UTF-8 become `U+FFFD`.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim().to_owned()
    }
}
