//! The command line's client of the agent in a guest: [`volt_agent_client`] with the errors of a user, with
//! terminals, and with forwarded ports.

mod commands;
pub(crate) mod control;
pub(crate) mod forwarding;
mod pass;
mod places;
mod session;
mod trees;

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use volt_agent_client as client;
pub(crate) use volt_agent_client::{
    CallError, Command, Cut, End, InputKind, MainRefusal, Selected, TreePlace,
};
use volt_agent_client::{PortStream, Request};

pub(crate) use trees::GuestPath;

use crate::failure::Failure;
use crate::terminal::signal_queue::SignalQueue;

/// Longest time from the start of a VM to the agent's first answer.
const BOOT: Duration = Duration::from_secs(120);
/// Time between two attempts to reach the agent.
const STEP: Duration = Duration::from_millis(2);

/// The agent of one VM.
#[derive(Clone, Debug)]
pub(crate) struct Agent {
    client: client::Agent,
    /// The VM's name, for errors.
    vm: String,
}

impl Agent {
    /// The agent of the VM `vm`, whose vsock has this unix socket.
    pub(crate) fn new(socket: &Path, vm: impl Into<String>) -> Self {
        Self { client: client::Agent::new(socket), vm: vm.into() }
    }

    /// Waits until the agent answers, or one of `signals` comes. `is_alive` tells whether the VM lives.
    ///
    /// # Errors
    /// The VM has ended, it takes too long, or a signal asks this process to end.
    pub(crate) fn wait_ready(
        &self,
        signals: Option<&SignalQueue>,
        is_alive: impl Fn() -> bool,
    ) -> Result<(), Failure> {
        let end = Instant::now() + BOOT;
        loop {
            if let Some(signal) = signals.and_then(|signals| signals.take().first().copied()) {
                let problem = format!("VM {}: its agent has not answered yet", self.vm);
                return Err(Failure::Interrupted { problem, signal });
            }
            match self.client.ask(&Request::new("GET", "/health")) {
                Ok(answer) if answer.status == 204 => return Ok(()),
                _ if !is_alive() => return Err(self.failure("it ended before its agent answered")),
                Ok(answer) => return Err(self.failure(format!("its agent is not ready: {}", answer.text()))),
                Err(error) if Instant::now() > end => {
                    let problem = format!("its agent does not answer ({error}); see volt-vmm logs --console");
                    return Err(self.failure(problem));
                }
                Err(_) => sleep(STEP),
            }
        }
    }

    /// Makes sure that the agent answers now.
    ///
    /// # Errors
    /// It does not, or the VM has none.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        self.told(self.client.check())
    }

    /// Connects to the program at this TCP port of the guest.
    ///
    /// # Errors
    /// No program takes the connection, or the agent does not answer.
    fn connect_to_port(&self, port: u16) -> Result<PortStream, Failure> {
        self.told(self.client.connect_to_port(port))
    }

    /// Gives an error the VM's name.
    fn told<T>(&self, result: client::Result<T>) -> Result<T, Failure> {
        result.map_err(|error| match error {
            client::Error::Copy(source) => Failure::system("copy", source),
            error => self.failure(error.to_string()),
        })
    }

    fn failure(&self, problem: impl Into<String>) -> Failure {
        Failure::vm(&self.vm, problem)
    }
}
