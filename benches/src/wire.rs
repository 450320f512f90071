//! The host's side of a guest's network interface: a tap, and a packet socket that exchanges frames with the
//! guest. It resembles the tests' wire: benches/compare.sh puts the benchmarks into older trees, so they use
//! nothing of the tests.
#![allow(unsafe_code)]

use std::os::fd::OwnedFd;
use std::process::Command;
use std::time::Duration;

use rustix::net::addr::{SocketAddrArg, SocketAddrLen, SocketAddrOpaque};
use rustix::net::netdevice::name_to_index;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::{OrSay, Result};

/// The type of the frames, which is for experiments. The small guest answers no other.
const KIND: u16 = 0x88b5;
/// The shortest frame.
const FRAME: usize = 60;
/// Time limit of one answer.
const LIMIT: Duration = Duration::from_secs(10);

/// A tap that lasts from one process to the next, and goes with its owner.
#[derive(Debug)]
pub struct Tap(String);

impl Tap {
    /// Makes one.
    ///
    /// # Errors
    /// Without the privilege, or without `ip`.
    pub fn new(name: String) -> Result<Self> {
        ip(&["tuntap", "add", "dev", &name, "mode", "tap", "vnet_hdr"])?;
        Ok(Self(name))
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        let _ = ip(&["link", "delete", &self.0]);
    }
}

fn ip(arguments: &[&str]) -> Result<()> {
    let status = Command::new("ip").args(arguments).status().or_say("run ip")?;
    if status.success() { Ok(()) } else { Err(format!("ip {} failed", arguments.join(" "))) }
}

/// The host's end of a tap.
#[derive(Debug)]
pub struct Wire(OwnedFd);

impl Wire {
    /// Opens the end of a tap that a VM has, and sets its link up.
    ///
    /// # Errors
    /// Without the privilege, or without the tap.
    pub fn open(tap: &str) -> Result<Self> {
        ip(&["link", "set", tap, "up"])?;
        let socket =
            rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None);
        let socket = socket.or_say("open a packet socket")?;
        let index = name_to_index(&socket, tap).or_say("find a tap")?;
        rustix::net::bind(&socket, &Interface(index.cast_signed())).or_say("bind to a tap")?;
        set_socket_timeout(&socket, Timeout::Recv, Some(LIMIT)).or_say("set a time limit")?;
        Ok(Self(socket))
    }

    /// Sends the shortest frame and waits for the guest's answer.
    ///
    /// # Errors
    /// The guest does not answer within 10 s.
    pub fn exchange(&self) -> Result<()> {
        let mut frame = [0; FRAME];
        frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5]);
        rustix::net::send(&self.0, &frame, SendFlags::empty()).or_say("send a frame")?;
        // The answer carries the inverted bytes.
        while frame[14] == 0 {
            rustix::net::recv(&self.0, &mut frame[..], RecvFlags::empty()).or_say("receive a frame")?;
        }
        Ok(())
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
