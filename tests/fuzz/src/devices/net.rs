//! A network interface and the other end of its connection.

use std::os::unix::net::UnixDatagram;

use arbitrary::Arbitrary;
use volt_vmm::config::devices::{NetBackend, NetConfig, RateLimit};
use volt_vmm::fuzzing::FuzzedDevice;

use crate::Bench;

const HEADER: usize = 12;
/// Shortest frame: two addresses and a type.
const SHORTEST: usize = 14;

/// The interface.
#[derive(Debug, Default)]
pub struct Wire(Option<UnixDatagram>);

/// `struct virtio_net_hdr_v1`, and the length of the data in the same piece.
#[derive(Debug, Arbitrary)]
pub struct Header {
    flags: u8,
    gso_type: u8,
    words: [u16; 5],
    len: u16,
}

impl From<Header> for Vec<u8> {
    fn from(header: Header) -> Self {
        let mut bytes = vec![header.flags, header.gso_type];
        header.words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes.resize(HEADER + usize::from(header.len), 0x42);
        bytes
    }
}

/// An act of the other end.
#[derive(Debug, Arbitrary)]
pub enum Host {
    /// Sends a frame, up to longer than allowed.
    Send(Header),
    /// Sends fewer bytes than a header has.
    Short(u8),
    /// Reads the frames that have come.
    Read,
    /// Closes the connection.
    Close,
}

impl Bench for Wire {
    type Head = Header;
    type Host = Host;
    const REQUESTS: u8 = 1;

    fn device(&mut self) -> volt_vmm::Result<FuzzedDevice> {
        let config = NetConfig {
            id: "eth0".into(),
            backend: NetBackend::Tap("unused".into()),
            mac: None,
            mtu: Some(1500),
            offload: true,
            dns_forward: false,
            addresses: Vec::new(),
            receive_limit: RateLimit::default(),
            transmit_limit: RateLimit::default(),
        };
        let (device, other) = FuzzedDevice::net(&config);
        other.set_nonblocking(true).expect("a socket");
        self.0 = Some(other);
        Ok(device)
    }

    fn host(&mut self, act: Host) {
        let Some(other) = &self.0 else { return };
        // The connection may be full or closed, which the device must handle.
        match act {
            Host::Send(header) => drop(other.send(&Vec::from(header))),
            Host::Short(len) => drop(other.send(&vec![1; usize::from(len % 13)])),
            Host::Read => {
                while let Ok(len @ 1..) = other.recv(&mut [0; 0x1_0100]) {
                    assert!(len >= HEADER + SHORTEST, "a frame of {len} bytes with its header");
                }
            }
            Host::Close => self.0 = None,
        }
    }
}
