//! System calls that the standard library does not offer, as safe functions.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Mounts a file system that has no source, such as proc.
pub(crate) fn mount(kind: &str, path: &str, options: &str) -> io::Result<()> {
    let [kind, path, options] = [CString::new(kind)?, CString::new(path)?, CString::new(options)?];
    // SAFETY: all pointers are to strings that live through the call.
    let result =
        unsafe { libc::mount(kind.as_ptr(), path.as_ptr(), kind.as_ptr(), 0, options.as_ptr().cast()) };
    check(result)
}

/// Makes `to` another descriptor of what `from` is. The file descriptor `to` must not be owned by anything.
pub(crate) fn duplicate(from: RawFd, to: RawFd) {
    // SAFETY: dup2 touches no memory; standard descriptors, which it is used for here, have no owner.
    unsafe { libc::dup2(from, to) };
}

/// Stops a terminal from echoing its input. Anything but a terminal is left as it is.
pub(crate) fn echo_off(fd: RawFd) {
    // SAFETY: a termios of zeros is valid, and only used if tcgetattr filled it.
    unsafe {
        let mut terminal: libc::termios = zeroed();
        if libc::tcgetattr(fd, &mut terminal) == 0 {
            terminal.c_lflag &= !(libc::ECHO | libc::ECHONL);
            libc::tcsetattr(fd, libc::TCSANOW, &terminal);
        }
    }
}

/// Waits until a terminal has sent everything.
pub(crate) fn drain(fd: RawFd) {
    // SAFETY: tcdrain touches no memory.
    unsafe { libc::tcdrain(fd) };
}

/// The time of a clock that every kernel has, in nanoseconds.
pub(crate) fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec that lives through the call.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Sleeps, with one relative nanosleep unless a signal comes.
pub(crate) fn nanosleep(time: Duration) {
    let mut left = timespec(time);
    // SAFETY: both pointers are to a timespec that lives through the call, and the kernel allows them to be the same.
    while unsafe { libc::nanosleep(&left, &mut left) } != 0 {}
}

/// A timerfd set to a moment of the monotonic clock.
pub(crate) struct Timer(OwnedFd);

impl Timer {
    /// Arms one.
    pub(crate) fn at(moment: Duration) -> io::Result<Self> {
        // SAFETY: timerfd_create touches no memory.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC) };
        check(fd.min(0))?;
        // SAFETY: the descriptor is new, and nobody else's.
        let timer = Self(unsafe { OwnedFd::from_raw_fd(fd) });
        let setting = libc::itimerspec { it_interval: timespec(Duration::ZERO), it_value: timespec(moment) };
        // SAFETY: the pointer is to a setting that lives through the call; a null pointer asks for no old one.
        let result =
            unsafe { libc::timerfd_settime(fd, libc::TFD_TIMER_ABSTIME, &setting, std::ptr::null_mut()) };
        check(result).map(|()| timer)
    }

    /// Waits until it has expired.
    pub(crate) fn wait(&self) {
        let mut expired = 0_u64;
        // SAFETY: the eight bytes that a timerfd returns go into a u64.
        while unsafe { libc::read(self.0.as_raw_fd(), (&raw mut expired).cast(), 8) } != 8 {}
    }
}

/// How many processors are online.
pub(crate) fn online_processors() -> usize {
    // SAFETY: sysconf touches no memory.
    unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }.max(1) as usize
}

/// System, release, version and machine.
pub(crate) fn uname() -> String {
    // SAFETY: a utsname of zeros is valid, being empty strings.
    let mut name: libc::utsname = unsafe { zeroed() };
    // SAFETY: the pointer is to a utsname that lives through the call.
    unsafe { libc::uname(&mut name) };
    let fields = [&name.sysname, &name.release, &name.version, &name.machine];
    // SAFETY: the kernel ends each field with a zero byte, as the zeros before it did.
    let text = fields.map(|field| unsafe { CStr::from_ptr(field.as_ptr()) }.to_string_lossy());
    text.join(" ")
}

/// Writes all file systems out.
pub(crate) fn sync() {
    // SAFETY: sync touches no memory.
    unsafe { libc::sync() };
}

/// Ends the machine in one of the ways of reboot(2). It returns only if that failed.
pub(crate) fn reboot(how: libc::c_int) -> io::Error {
    // SAFETY: reboot touches no memory.
    unsafe { libc::reboot(how) };
    io::Error::last_os_error()
}

fn timespec(time: Duration) -> libc::timespec {
    libc::timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
