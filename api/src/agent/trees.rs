//! Files and directories on their way into and out of a guest.

use std::io::{self, Write};

use volt_agent_client as client;
use volt_agent_client::{Cut, FileKind, TreePlace};
use volt_job::tree::Unpacked;

use super::Agent;
use crate::failure::Failure;

/// The kind of a path in a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GuestPath {
    Missing,
    Directory,
    Other,
}

impl Agent {
    /// Looks at a path.
    ///
    /// # Errors
    /// The agent does not answer, or may not look.
    pub(crate) fn look_at(&self, path: &str) -> Result<GuestPath, Failure> {
        let found = self.told(self.client.look_at(path))?;
        Ok(match found.map(|entry| entry.kind) {
            None => GuestPath::Missing,
            Some(FileKind::Directory) => GuestPath::Directory,
            Some(_) => GuestPath::Other,
        })
    }

    /// Asks for the tree at a path. Returns the stream.
    ///
    /// # Errors
    /// The agent does not answer, or the path does not exist.
    pub(crate) fn fetch_tree(&self, path: &str) -> Result<(impl io::Read, Cut), Failure> {
        self.told(self.client.fetch_tree(path))
    }

    /// Begins to send a tree.
    ///
    /// # Errors
    /// The agent does not answer.
    pub(crate) fn send_tree(&self, place: TreePlace<'_>) -> Result<(TreeSender<'_>, Cut), Failure> {
        let (sender, cut) = self.told(self.client.send_tree(place))?;
        Ok((TreeSender { agent: self, sender }, cut))
    }
}

/// Takes the stream of a tree.
#[derive(Debug)]
pub(crate) struct TreeSender<'a> {
    agent: &'a Agent,
    sender: client::TreeSender,
}

impl TreeSender<'_> {
    /// Ends the stream. `written` is its fate: the agent's refusal explains a broken connection better.
    ///
    /// # Errors
    /// The agent refuses, or the stream failed.
    pub(crate) fn finish(self, written: io::Result<()>) -> Result<Unpacked, Failure> {
        self.agent.told(self.sender.finish(written))
    }
}

impl Write for TreeSender<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.sender.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sender.flush()
    }
}
