//! Connections to TCP ports of a guest.

use std::os::unix::net::UnixStream;

use volt_job::port::{PATH, PROTOCOL};

use crate::Agent;
use crate::error::Result;
use crate::http::{Answer, Request};

/// The status of an answer after which the connection has another protocol.
const SWITCHES: u16 = 101;

/// The host's end of a connection to a program in a guest.
#[derive(Debug)]
pub struct PortStream {
    /// The connection.
    pub stream: UnixStream,
    /// Bytes that the program has sent already.
    pub unread: Vec<u8>,
}

impl Agent {
    /// Connects to the program at this TCP port of the guest.
    ///
    /// # Errors
    /// No program takes the connection, or the agent does not answer.
    pub fn connect_to_port(&self, port: u16) -> Result<PortStream> {
        let path = format!("{PATH}?port={port}");
        let answer = self.call(&Request::new("GET", &path).upgrade(PROTOCOL))?;
        match answer {
            Answer { status: SWITCHES, unread, stream, .. } => {
                let stream = stream.into_inner();
                Ok(PortStream { stream, unread })
            }
            refused => Err(refused.refusal()),
        }
    }
}
