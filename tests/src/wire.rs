//! The host's end of a tap: a packet socket that exchanges Ethernet frames with the guest, without an address
//! or a route on the host.
#![allow(unsafe_code)]

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::process::Command;

use rustix::net::addr::{SocketAddrArg, SocketAddrLen, SocketAddrOpaque};
use rustix::net::netdevice::name_to_index;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::patience::{output, patience, wait_until};

/// The type of the frames, one for experiments. Other frames are not received.
pub const KIND: u16 = 0x88b5;

/// A tap's end on the host.
#[derive(Debug)]
pub struct Wire(OwnedFd);

impl Wire {
    /// Waits for a VM's tap and sets its link up.
    ///
    /// # Panics
    /// The tap does not appear in time, or the host has no packet sockets.
    #[must_use]
    pub fn of(tap: &str) -> Self {
        // Without a protocol the socket receives nothing before it is bound to the tap.
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None);
        let socket = socket.expect("open a packet socket");
        let mut index = 0;
        wait_until(&format!("there is a tap {tap}"), || {
            index = name_to_index(&socket, tap).unwrap_or(0);
            index != 0
        });
        let up = output(Command::new("ip").args(["link", "set", tap, "up"]));
        assert!(up.status.success(), "{up:?}");
        rustix::net::bind(&socket, &Interface(index.cast_signed())).expect("bind to a tap");
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

    /// Receives the next frame from the guest.
    ///
    /// # Panics
    /// No frame comes in time.
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
