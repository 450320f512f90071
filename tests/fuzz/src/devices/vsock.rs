//! A vsock, programs of the host that connect to the guest, and programs that the guest connects to.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};

use arbitrary::Arbitrary;
use volt_vmm::config::devices::VsockConfig;
use volt_vmm::fuzzing::FuzzedDevice;

use crate::{Bench, Dir};

const CID: u32 = 3;
/// Most programs on the host.
const MOST: usize = 16;

/// The vsock.
#[derive(Debug)]
pub struct Sockets {
    programs: Vec<UnixStream>,
    listener: UnixListener,
    dir: Dir,
}

impl Sockets {
    /// Makes a directory in which a program listens at the guest's port 1.
    ///
    /// # Panics
    /// Temporary files cannot be made.
    #[must_use]
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        let dir = Dir::new();
        let listener = UnixListener::bind(dir.join("vsock_1")).expect("a socket");
        listener.set_nonblocking(true).expect("a socket");
        Self { programs: Vec::new(), listener, dir }
    }
}

/// Header of a packet, mostly with valid addresses.
#[derive(Debug, Arbitrary)]
pub struct Header {
    is_stranger: u8,
    stranger: [u32; 3],
    /// Port of the host: a program listens at 1; ports from 2^30 on belong to programs that connect.
    host_port: u8,
    guest_port: u8,
    op: u8,
    odd_op: u8,
    flags: u8,
    len: u16,
    is_odd: u8,
    odd_len: u32,
    room: u16,
    odd_room: (u32, u32),
    /// Length of the payload in the piece of the header.
    follows: u16,
}

impl From<Header> for Vec<u8> {
    fn from(header: Header) -> Self {
        let known = [CID, 2, 1];
        let [src, dst, kind] = if header.is_stranger % 16 == 1 { header.stranger } else { known };
        let host_port = match header.host_port % 4 {
            port @ 0..=1 => 1 + u32::from(port),
            port => (1 << 30) + u32::from(port) - 2,
        };
        let op = if header.odd_op % 16 == 1 { header.op.into() } else { u16::from(header.op % 8) };
        let (odd_len, odd_room) = (header.is_odd % 16 == 1, header.is_odd & 0xc0 == 0xc0);
        let (room, forwarded) = if odd_room { header.odd_room } else { (header.room.into(), 0) };
        let len = if odd_len { header.odd_len } else { header.len.into() };
        let mut bytes = Vec::new();
        bytes.extend(u64::from(src).to_le_bytes());
        bytes.extend(u64::from(dst).to_le_bytes());
        bytes.extend(u32::from(header.guest_port % 2).to_le_bytes());
        bytes.extend(host_port.to_le_bytes());
        bytes.extend(len.to_le_bytes());
        bytes.extend((kind as u16).to_le_bytes());
        bytes.extend(op.to_le_bytes());
        bytes.extend(u32::from(header.flags).to_le_bytes());
        bytes.extend(room.to_le_bytes());
        bytes.extend(forwarded.to_le_bytes());
        bytes.resize(44 + usize::from(header.follows.min(header.len)), 0x42);
        bytes
    }
}

/// An act of the host's programs.
#[derive(Debug, Arbitrary)]
pub enum Host {
    /// Connects a program to a port of the guest.
    Call { port: u8 },
    /// Connects a program that sends an invalid request.
    Mumble { bytes: Vec<u8> },
    /// Accepts a connection of the guest.
    Accept,
    /// Sends bytes.
    Say { program: u8, bytes: u16 },
    /// Reads at most so many bytes.
    Read { program: u8, most: u16 },
    /// Shuts down the sending or receiving side of a program.
    Shut { program: u8, sends: bool },
    /// Disconnects.
    Close { program: u8 },
}

impl Sockets {
    fn call(&mut self, line: &[u8]) {
        if let (true, Ok(mut stream)) =
            (self.programs.len() < MOST, UnixStream::connect(self.dir.join("vsock")))
        {
            stream.set_nonblocking(true).expect("a socket");
            let _ = stream.write(line);
            self.programs.push(stream);
        }
    }

    fn program(&mut self, number: u8) -> Option<&mut UnixStream> {
        let at = usize::from(number) % self.programs.len().max(1);
        self.programs.get_mut(at)
    }
}

impl Bench for Sockets {
    type Head = Header;
    type Host = Host;
    const REQUESTS: u8 = 1;

    fn device(&mut self) -> volt_vmm::Result<FuzzedDevice> {
        FuzzedDevice::vsock(&VsockConfig { cid: CID, socket: self.dir.join("vsock").into() })
    }

    fn host(&mut self, act: Host) {
        match act {
            Host::Call { port } => self.call(format!("CONNECT {}\n", port % 2).as_bytes()),
            Host::Mumble { bytes } => self.call(&bytes),
            Host::Accept => {
                if let (true, Ok((stream, _))) = (self.programs.len() < MOST, self.listener.accept()) {
                    stream.set_nonblocking(true).expect("a socket");
                    self.programs.push(stream);
                }
            }
            Host::Say { program, bytes } => {
                self.program(program).map(|stream| stream.write(&vec![0x5a; bytes.into()]));
            }
            Host::Read { program, most } => {
                self.program(program).map(|stream| stream.read(&mut vec![0; most.into()]));
            }
            Host::Shut { program, sends } => {
                let way = if sends { std::net::Shutdown::Write } else { std::net::Shutdown::Read };
                self.program(program).map(|stream| stream.shutdown(way));
            }
            Host::Close { program } => {
                if !self.programs.is_empty() {
                    self.programs.swap_remove(usize::from(program) % self.programs.len());
                }
            }
        }
    }
}
