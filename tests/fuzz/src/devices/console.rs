//! A console and the clients at its socket.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use arbitrary::Arbitrary;
use volt_vmm::config::devices::ConsoleConfig;
use volt_vmm::fuzzing::FuzzedDevice;

use crate::{Bench, Dir};

/// The console.
#[derive(Debug, Default)]
pub struct Console {
    clients: Vec<UnixStream>,
    dir: Dir,
}

/// Output of the guest.
#[derive(Debug, Arbitrary)]
pub struct Text(u16);

impl From<Text> for Vec<u8> {
    fn from(text: Text) -> Self {
        vec![b'.'; text.0.into()]
    }
}

/// An act of a client.
#[derive(Debug, Arbitrary)]
pub enum Host {
    /// Connects, if few are connected.
    Connect,
    /// Sends bytes.
    Say(u16),
    /// Reads at most so many bytes.
    Read(u16),
    /// Shuts down the client's sending or receiving side.
    Shut(bool),
    /// Disconnects.
    Close,
}

impl Bench for Console {
    type Head = Text;
    type Host = Host;
    const REQUESTS: u8 = 1;

    fn device(&mut self) -> volt_vmm::Result<FuzzedDevice> {
        FuzzedDevice::console(&ConsoleConfig { socket: self.dir.join("console").into() })
    }

    fn host(&mut self, act: Host) {
        if let (Host::Connect, true) = (&act, self.clients.len() < 4) {
            let stream = UnixStream::connect(self.dir.join("console")).expect("a console that listens");
            stream.set_nonblocking(true).expect("a socket");
            self.clients.push(stream);
        }
        let Some(client) = self.clients.first_mut() else { return };
        // Errors are the client's: the console may have closed it for another client.
        match act {
            Host::Connect => {}
            Host::Say(len) => drop(client.write(&vec![b'x'; len.into()])),
            Host::Read(most) => drop(client.read(&mut vec![0; most.into()])),
            Host::Shut(true) => drop(client.shutdown(std::net::Shutdown::Write)),
            Host::Shut(false) => drop(client.shutdown(std::net::Shutdown::Read)),
            Host::Close => drop(self.clients.remove(0)),
        }
    }
}
