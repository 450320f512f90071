//! Entropy for the kernel's random number generator.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;

use rustix::fs::{Mode, OFlags, open};
use volt_job::quiet::ENTROPY;

/// `RNDADDENTROPY` of linux/random.h.
const ADD: libc::c_uint = 0x4008_5203;
/// `RNDRESEEDCRNG` of linux/random.h.
const RESEED: libc::c_uint = 0x5207;

/// `struct rand_pool_info` of linux/random.h, with its buffer.
#[repr(C)]
struct PoolInfo {
    /// Bits.
    entropy_count: libc::c_int,
    /// Bytes.
    buf_size: libc::c_int,
    buf: [u8; ENTROPY],
}

/// Mixes bytes into the generator, counts all their bits as entropy, and has the generator take a new key.
pub(super) fn take(bytes: &[u8; ENTROPY]) -> Result<(), String> {
    let info =
        PoolInfo { entropy_count: 8 * ENTROPY as libc::c_int, buf_size: ENTROPY as libc::c_int, buf: *bytes };
    let failed = |error: io::Error| format!("/dev/urandom: {error}");
    let device = open("/dev/urandom", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
    let device = device.map_err(|errno| failed(errno.into()))?;
    // SAFETY: the kernel reads the structure, with the length that it names, during the call.
    let added = unsafe { libc::ioctl(device.as_raw_fd(), ADD as libc::Ioctl, &raw const info) };
    // SAFETY: the call takes no pointer.
    let reseeded = unsafe { libc::ioctl(device.as_raw_fd(), RESEED as libc::Ioctl) };
    if added < 0 || reseeded < 0 { Err(failed(io::Error::last_os_error())) } else { Ok(()) }
}
