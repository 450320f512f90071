//! The host's end of a tap: a packet socket, through which a test sends Ethernet frames to the guest and sees what the guest
//! sends, without an address or a route on the host.
#![allow(unsafe_code)]

use std::fs;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;

use rustix::net::addr::{SocketAddrArg, SocketAddrLen, SocketAddrOpaque};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::patience::{patience, wait_until};

/// The type of the frames, one that is for experiments: no other is received.
pub const KIND: u16 = 0x88b5;

/// A tap's end on the host.
#[derive(Debug)]
pub struct Wire(OwnedFd);

impl Wire {
    /// The end of a tap that a VM has or is about to have; sets its link up.
    ///
    /// # Panics
    /// There is none in time, or no packet sockets.
    #[must_use]
    pub fn of(tap: &str) -> Self {
        let read = |what: &str| fs::read_to_string(format!("/sys/class/net/{tap}/{what}"));
        let mut index = None;
        wait_until(&format!("there is a tap {tap}"), || {
            index = read("ifindex").ok().and_then(|index| index.trim().parse().ok());
            index.is_some()
        });
        let flags = read("flags").expect("an interface has flags");
        let flags = u32::from_str_radix(flags.trim().trim_start_matches("0x"), 16).expect("a number");
        let up = format!("{:#x}", flags | libc::IFF_UP.cast_unsigned());
        fs::write(format!("/sys/class/net/{tap}/flags"), up).expect("set a link up");

        let (family, flags) = (AddressFamily::PACKET, SocketFlags::CLOEXEC);
        let protocol = Protocol::from_raw(u32::from(KIND.to_be()).try_into().expect("not 0"));
        let socket = rustix::net::socket_with(family, SocketType::RAW, flags, Some(protocol));
        let socket = socket.expect("open a packet socket");
        rustix::net::bind(&socket, &Interface(index.expect("just found"))).expect("bind to a tap");
        set_socket_timeout(&socket, Timeout::Recv, Some(patience())).expect("set a time limit");
        Self(socket)
    }

    /// Sends a frame, without its checksum.
    ///
    /// # Panics
    /// The link is down.
    pub fn send(&self, frame: &[u8]) {
        let sent = rustix::net::send(&self.0, frame, SendFlags::empty()).expect("send a frame");
        assert_eq!(sent, frame.len());
    }

    /// The next frame from the guest.
    ///
    /// # Panics
    /// None comes in time.
    #[must_use]
    pub fn receive(&self) -> Vec<u8> {
        let mut frame = vec![0; 65_536];
        loop {
            match rustix::net::recv(&self.0, &mut frame[..], RecvFlags::empty()).map_err(|errno| errno.kind())
            {
                Ok((_, len)) => {
                    frame.truncate(len);
                    return frame;
                }
                Err(ErrorKind::Interrupted) => {}
                Err(error) => panic!("no frame comes: {error}"),
            }
        }
    }
}

/// Frames of [`KIND`] on the interface of this number.
struct Interface(i32);

// SAFETY: the closure gets a whole `sockaddr_ll`, which is the address of a packet socket.
unsafe impl SocketAddrArg for Interface {
    unsafe fn with_sockaddr<R>(&self, call: impl FnOnce(*const SocketAddrOpaque, SocketAddrLen) -> R) -> R {
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: KIND.to_be(),
            sll_ifindex: self.0,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        call((&raw const address).cast(), size_of_val(&address) as SocketAddrLen)
    }
}
