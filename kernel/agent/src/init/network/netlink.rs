//! Requests to the kernel's tables of interfaces, addresses and routes (rtnetlink(7)).
//!
//! ```text
//!  length, type, flags, sequence, port │ header of the type │ length, type, value, padding │ …
//! ```

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

/// Bytes of the first header.
const HEADER: usize = 16;
/// Type of an answer: an error's number, or 0.
const ANSWER: u16 = libc::NLMSG_ERROR as u16;

/// A socket to the kernel.
pub(super) struct Netlink(OwnedFd);

/// The number of an interface.
pub(super) type Index = u32;

impl Netlink {
    pub(super) fn open() -> io::Result<Self> {
        // Protocol 0 is NETLINK_ROUTE.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None);
        Ok(Self(socket?))
    }

    /// Limits the length of packets, in bytes without headers.
    pub(super) fn set_mtu(&self, interface: Index, mtu: u16) -> io::Result<()> {
        let message = Message::new(libc::RTM_NEWLINK, 0, &link(interface, 0));
        self.ask(message.with(libc::IFLA_MTU, &u32::from(mtu).to_ne_bytes()))
    }

    pub(super) fn bring_up(&self, interface: Index) -> io::Result<()> {
        self.ask(Message::new(libc::RTM_NEWLINK, 0, &link(interface, libc::IFF_UP.cast_unsigned())))
    }

    /// Gives an interface an address of its network, which it may use at once: the kernel does not look for
    /// another that has it.
    pub(super) fn add_address(&self, interface: Index, address: IpAddr, prefix: u8) -> io::Result<()> {
        let [family, flags, scope] = [family(address), libc::IFA_F_NODAD as u8, libc::RT_SCOPE_UNIVERSE];
        let header = [&[family, prefix, flags, scope], &interface.to_ne_bytes()[..]].concat();
        let message = Message::new(libc::RTM_NEWADDR, CREATE, &header);
        let octets = octets(address);
        self.ask(message.with(libc::IFA_LOCAL, &octets).with(libc::IFA_ADDRESS, &octets))
    }

    /// Adds a route to all networks of the gateway's version of IP.
    pub(super) fn add_default_route(&self, interface: Index, gateway: IpAddr) -> io::Result<()> {
        let [destination, source, service] = [0; 3];
        let (table, protocol) = (libc::RT_TABLE_MAIN, libc::RTPROT_BOOT);
        let (scope, kind) = (libc::RT_SCOPE_UNIVERSE, libc::RTN_UNICAST);
        let header = [family(gateway), destination, source, service, table, protocol, scope, kind];
        let flags = [0; 4];
        let message = Message::new(libc::RTM_NEWROUTE, CREATE, &[&header[..], &flags].concat());
        let message = message.with(libc::RTA_GATEWAY, &octets(gateway));
        self.ask(message.with(libc::RTA_OIF, &interface.to_ne_bytes()))
    }

    /// Sends a request, and takes the answer.
    fn ask(&self, message: Message) -> io::Result<()> {
        send(&self.0, &message.finish(), SendFlags::empty())?;
        let mut answer = [0; 4096];
        let (len, _) = recv(&self.0, &mut answer[..], RecvFlags::empty())?;
        outcome(&answer[..len])
    }
}

/// Makes a thing that must not exist.
const CREATE: i32 = libc::NLM_F_CREATE | libc::NLM_F_EXCL;

/// Reads the kernel's answer.
fn outcome(answer: &[u8]) -> io::Result<()> {
    let kind = answer.get(4..6).and_then(|kind| kind.try_into().ok()).map(u16::from_ne_bytes);
    let number = answer.get(HEADER..).and_then(|rest| rest.first_chunk()).copied().map(i32::from_ne_bytes);
    match (kind, number) {
        (Some(ANSWER), Some(0)) => Ok(()),
        (Some(ANSWER), Some(number)) => Err(Errno::from_raw_os_error(-number).into()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// A request that is being written.
struct Message(Vec<u8>);

impl Message {
    /// Begins a request of this type, with the header of the type.
    fn new(kind: u16, flags: i32, header: &[u8]) -> Self {
        let flags = (libc::NLM_F_REQUEST | libc::NLM_F_ACK | flags) as u16;
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        bytes.extend(header);
        Self(bytes)
    }

    /// Adds an attribute.
    fn with(mut self, kind: u16, value: &[u8]) -> Self {
        self.0.extend((4 + value.len() as u16).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    fn finish(mut self) -> Vec<u8> {
        let len = self.0.len() as u32;
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0
    }
}

/// The header of requests about an interface, which sets these flags.
fn link(interface: Index, flags: u32) -> Vec<u8> {
    [0, interface, flags, flags].into_iter().flat_map(u32::to_ne_bytes).collect()
}

fn family(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => libc::AF_INET as u8,
        IpAddr::V6(_) => libc::AF_INET6 as u8,
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_has_its_length_and_padded_attributes() {
        let bytes = Message::new(20, CREATE, &[1, 2, 3, 4]).with(1, &[5, 6, 7, 8]).with(3, b"lo\0").finish();
        assert_eq!(bytes.len(), 36);
        assert_eq!(bytes[..8], [&36_u32.to_ne_bytes()[..], &20_u16.to_ne_bytes(), &[5, 6]].concat());
        assert_eq!(bytes[16..24], [&[1, 2, 3, 4, 8, 0][..], &1_u16.to_ne_bytes()].concat());
        assert_eq!(bytes[28..], [&[7, 0, 3, 0][..], b"lo\0\0"].concat());
    }

    #[test]
    fn answer_is_an_error_unless_its_number_is_0() {
        let answer = |number: i32| {
            let mut bytes = vec![0; HEADER];
            bytes[4..6].copy_from_slice(&ANSWER.to_ne_bytes());
            bytes.extend(number.to_ne_bytes());
            outcome(&bytes).map_err(|error| error.raw_os_error())
        };
        assert_eq!((answer(0), answer(-17)), (Ok(()), Err(Some(libc::EEXIST))));
        assert!(outcome(&[0; HEADER + 4]).is_err() && outcome(b"").is_err());
    }
}
