//! Commands in a guest: their start, and requests about them.

use volt_agent_client::{CallError, Command, InputKind, MainRefusal, Selected};
use volt_job::StartMain;
use volt_job::start::Size;

use super::Agent;
use super::session::Session;
use crate::failure::Failure;

impl Agent {
    /// Starts a command. The inner error is the agent's refusal.
    ///
    /// # Errors
    /// The agent does not answer.
    pub(crate) fn start(&self, command: &Command) -> Result<Result<Session, CallError>, Failure> {
        let started = self.told(self.client.start(command))?;
        Ok(started.map(|followed| Session::new(self, followed)))
    }

    /// Starts the main process. Returns its process id.
    ///
    /// # Errors
    /// The agent does not answer.
    pub(crate) fn start_main(&self, main: &StartMain) -> Result<Result<u32, MainRefusal>, Failure> {
        self.told(self.client.start_main(main))
    }

    /// Follows the main process, `from_start` of its output on, as far as the agent has it, or from now on.
    ///
    /// # Errors
    /// There is none, or the agent does not answer.
    pub(crate) fn follow_main(&self, from_start: bool, input: Option<InputKind>) -> Result<Session, Failure> {
        self.told(self.client.follow_main(from_start, input)).map(|followed| Session::new(self, followed))
    }

    /// Follows the main process where an earlier session broke off.
    ///
    /// # Errors
    /// The VM has ended, or the agent does not know the process in time.
    pub(crate) fn follow_again(
        &self,
        earlier: &Session,
        input: Option<InputKind>,
        is_alive: impl Fn() -> bool,
    ) -> Result<Session, Failure> {
        let followed = self.client.follow_again(earlier.followed(), input, is_alive);
        self.told(followed).map(|followed| Session::new(self, followed))
    }

    /// Sends a signal to a command. One that has ended takes none, which is no error.
    ///
    /// # Errors
    /// The agent does not answer, or refuses.
    pub(crate) fn signal(&self, process: &Selected, signal: i32) -> Result<(), Failure> {
        self.told(self.client.signal(process, signal))
    }

    /// Whether a command has ended, perhaps. `None`: the agent does not answer within a second.
    pub(super) fn has_ended(&self, pid: u32) -> Option<bool> {
        self.client.has_ended(pid)
    }

    /// Tells a command's terminal its size.
    ///
    /// # Errors
    /// As [`Agent::signal`].
    pub(crate) fn resize(&self, process: &Selected, size: Size) -> Result<(), Failure> {
        self.told(self.client.resize(process, size))
    }
}
