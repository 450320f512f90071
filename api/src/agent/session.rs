//! A command in a guest as the other end of a terminal.

use std::io;
use std::os::fd::BorrowedFd;

use volt_agent_client as client;
use volt_agent_client::End;

use super::Agent;
use crate::failure::Failure;
use crate::terminal::attached::{Received, Remote};

/// A command that this process follows.
#[derive(Debug)]
pub(crate) struct Session {
    agent: Agent,
    followed: client::Session,
}

impl Session {
    pub(super) fn new(agent: &Agent, followed: client::Session) -> Self {
        Self { agent: agent.clone(), followed }
    }

    pub(super) fn followed(&self) -> &client::Session {
        &self.followed
    }

    /// The process id in the guest.
    pub(crate) fn pid(&self) -> u32 {
        self.followed.pid
    }

    /// The end, once it has come.
    pub(crate) fn end(&self) -> Option<&End> {
        self.followed.end.as_ref()
    }
}

impl Remote for Session {
    fn output(&self) -> BorrowedFd<'_> {
        self.followed.output()
    }

    fn input(&self) -> Option<BorrowedFd<'_>> {
        self.followed.input()
    }

    fn receive(&mut self) -> Result<Received, Failure> {
        let client::Received { output, error, is_at_end } = self.agent.told(self.followed.receive())?;
        Ok(Received { output, error, is_at_end })
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.followed.send(bytes)
    }

    fn is_sending(&self) -> bool {
        self.followed.is_sending()
    }

    fn has_ended(&self) -> Option<bool> {
        self.agent.has_ended(self.pid())
    }

    fn end_input(&mut self) {
        self.followed.end_input();
    }
}
