//! A tap device of the host. The guest's network is the one to which the host routes or bridges the tap.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::fcntl_dupfd_cloexec;

use super::backend::Backend;
use super::feature;
use super::header;
use super::pieces::Pieces;
use crate::config::network::Mac;
use crate::error::{Error, Result};
use crate::holders;
use crate::paths;

const DRIVER: &str = "/dev/net/tun";

/// A tap device, released on drop. A tap that this process made is deleted then.
#[derive(Debug)]
pub(super) struct Tap(OwnedFd);

/// `struct ifreq` as TUNSETIFF takes it.
#[repr(C)]
struct IfReq {
    name: [u8; libc::IFNAMSIZ],
    flags: libc::c_short,
    unused: [u8; 22],
}

const _: () = assert!(size_of::<IfReq>() == 40);

impl Tap {
    /// Connects to the tap of this valid name, and makes it if it is missing.
    ///
    /// # Errors
    /// [`Error::Host`] if the tap cannot be used.
    pub fn open(name: &str) -> Result<Self> {
        let fd = paths::open(DRIVER, OFlags::RDWR | OFlags::NONBLOCK, 0)
            .map_err(|source| Error::file("open", format!("{DRIVER} for tap {name}"), source))?;
        let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
        let mut request = IfReq { name: [0; _], flags: flags as libc::c_short, unused: [0; 22] };
        request.name[..name.len()].copy_from_slice(name.as_bytes());
        let failed = |source: io::Error| {
            let cause = match source.raw_os_error() {
                Some(libc::EBUSY) => {
                    let holder = holders::named(paths::holder_of_tap(name));
                    format!("another process uses it{holder}, and no two can")
                }
                Some(libc::EPERM) => "this user does not own it and lacks CAP_NET_ADMIN".to_owned(),
                Some(libc::EINVAL) => "it is not a tap, or has several queues".to_owned(),
                _ => return Error::host(format!("use tap {name}"), source),
            };
            Error::host(format!("use tap {name}: {cause}"), source)
        };
        // SAFETY: TUNSETIFF takes an ifreq, which has the layout of `IfReq`.
        check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw mut request) }).map_err(failed)?;
        let tap = Self(fd.into());
        tap.set_header().map_err(failed)?;
        Ok(tap)
    }

    /// Uses a duplicate of this process's descriptor, which must be a tap with a header for offloads alone.
    ///
    /// # Errors
    /// [`Error::Host`] if it is another file, or a tap of another kind.
    pub fn of_descriptor(number: i32) -> Result<Self> {
        let failed = |source: io::Error| Error::host(format!("use descriptor {number} as a tap"), source);
        if number < 0 {
            return Err(failed(io::ErrorKind::InvalidInput.into()));
        }
        // SAFETY: it is not negative, and the caller of the library owns it. A closed one is an error.
        let given = unsafe { BorrowedFd::borrow_raw(number) };
        let own = fcntl_dupfd_cloexec(given, 3).map_err(|errno| failed(errno.into()))?;
        let mut request = IfReq { name: [0; _], flags: 0, unused: [0; 22] };
        // SAFETY: TUNGETIFF fills in an ifreq, which has the layout of `IfReq`.
        check(unsafe { libc::ioctl(own.as_raw_fd(), libc::TUNGETIFF, &raw mut request) }).map_err(failed)?;
        let needed = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
        if libc::c_int::from(request.flags) & needed != needed {
            let problem = "it was opened without IFF_TAP, IFF_NO_PI or IFF_VNET_HDR";
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, problem)));
        }
        let flags = fcntl_getfl(&own).map_err(|errno| failed(errno.into()))?;
        fcntl_setfl(&own, flags | OFlags::NONBLOCK).map_err(|errno| failed(errno.into()))?;
        let tap = Self(own);
        tap.set_header().map_err(failed)?;
        Ok(tap)
    }

    /// Uses a tap that was made for this device, which does not block.
    ///
    /// # Errors
    /// Errors of the host.
    pub fn of_own(tap: OwnedFd) -> io::Result<Self> {
        let tap = Self(tap);
        tap.set_header()?;
        Ok(tap)
    }

    /// Sets the length of the header before each frame.
    fn set_header(&self) -> io::Result<()> {
        let len = header::LEN as libc::c_int;
        // SAFETY: TUNSETVNETHDRSZ reads an int.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const len) })
    }
}

impl Backend for Tap {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn offloads(&self) -> bool {
        true
    }

    /// Limits the offloads of the host's network stack to those of the guest.
    fn begin(&mut self, features: u64, _: Mac) -> io::Result<()> {
        let when = |feature: u64, flag: libc::c_uint| if features & feature == 0 { 0 } else { flag };
        let mut offload = when(feature::GUEST_CSUM, libc::TUN_F_CSUM);
        if offload != 0 {
            offload |=
                when(feature::GUEST_TSO4, libc::TUN_F_TSO4) | when(feature::GUEST_TSO6, libc::TUN_F_TSO6);
        }
        // SAFETY: TUNSETOFFLOAD takes its flags by value.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(offload)) })
    }

    fn receive(&mut self, mut into: Pieces<'_>) -> io::Result<usize> {
        into.read_from(self.descriptor())
    }

    fn may_have_frame(&self) -> bool {
        let mut polled = [PollFd::new(&self.0, PollFlags::IN)];
        !matches!(poll(&mut polled, Some(&Timespec::default())), Ok(0))
    }

    fn send(&mut self, frame: Pieces<'_>) -> io::Result<()> {
        frame.write_to(self.descriptor()).map(drop).map_err(|error| match error.raw_os_error() {
            Some(libc::EIO) => io::Error::other("the tap is down; run `ip link set dev TAP up`"),
            _ => error,
        })
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
