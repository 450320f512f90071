//! System calls that the standard library does not offer, as safe functions.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Mounts a file system. One without a source, such as proc, ignores `source`.
pub(crate) fn mount(source: &str, path: &str, kind: &str, options: &str) -> io::Result<()> {
    let [source, path, kind, options] =
        [CString::new(source)?, CString::new(path)?, CString::new(kind)?, CString::new(options)?];
    // SAFETY: all pointers are to strings that live through the call.
    let result =
        unsafe { libc::mount(source.as_ptr(), path.as_ptr(), kind.as_ptr(), 0, options.as_ptr().cast()) };
    check(result)
}

/// Unmounts the file system at `path`.
pub(crate) fn unmount(path: &str) -> io::Result<()> {
    let path = CString::new(path)?;
    // SAFETY: the pointer is to a string that lives through the call.
    check(unsafe { libc::umount(path.as_ptr()) })
}

/// Discards the first `len` bytes of a disk.
pub(crate) fn discard(disk: &std::fs::File, len: u64) -> io::Result<()> {
    /// `_IO(0x12, 119)` of linux/fs.h.
    const BLKDISCARD: libc::Ioctl = 0x1277;
    let range = [0, len];
    // SAFETY: the kernel reads two numbers from an array of two that lives through the call.
    check(unsafe { libc::ioctl(disk.as_raw_fd(), BLKDISCARD, range.as_ptr()) })
}

// ---- Sockets ----------------------------------------------------------------------------------------------

fn socket(family: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: socket touches no memory.
    let fd = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    check(fd.min(0))?;
    // SAFETY: the descriptor is new, and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn vsock_address(cid: u32, port: u32) -> libc::sockaddr_vm {
    // SAFETY: an address of zeros is valid.
    let mut address: libc::sockaddr_vm = unsafe { zeroed() };
    address.svm_family = libc::AF_VSOCK as libc::sa_family_t;
    (address.svm_cid, address.svm_port) = (cid, port);
    address
}

/// Opens a vsock socket that listens on a port.
pub(crate) fn vsock_listen(port: u32) -> io::Result<OwnedFd> {
    let socket = socket(libc::AF_VSOCK)?;
    let address = vsock_address(libc::VMADDR_CID_ANY, port);
    // SAFETY: the pointer is to an address of the length given, which lives through the call.
    let bound = unsafe {
        let len = size_of_val(&address) as libc::socklen_t;
        libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len)
    };
    check(bound)?;
    // SAFETY: listen touches no memory.
    check(unsafe { libc::listen(socket.as_raw_fd(), 256) })?;
    Ok(socket)
}

/// Opens a vsock stream to a port of the host.
pub(crate) fn vsock_connect(port: u32) -> io::Result<OwnedFd> {
    let socket = socket(libc::AF_VSOCK)?;
    let address = vsock_address(libc::VMADDR_CID_HOST, port);
    // SAFETY: the pointer is to an address of the length given, which lives through the call.
    let connected = unsafe {
        let len = size_of_val(&address) as libc::socklen_t;
        libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len)
    };
    check(connected)?;
    Ok(socket)
}

/// Accepts the next stream of a listening socket.
pub(crate) fn accept(listener: &OwnedFd) -> io::Result<OwnedFd> {
    // SAFETY: null pointers ask for no address, so that accept touches no memory.
    let fd = unsafe { libc::accept(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut()) };
    check(fd.min(0))?;
    // SAFETY: the descriptor is new, and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Ends this side's half of a stream.
pub(crate) fn shut_down_writing(stream: RawFd) -> io::Result<()> {
    // SAFETY: shutdown touches no memory.
    check(unsafe { libc::shutdown(stream, libc::SHUT_WR) })
}

fn ipv4(address: std::net::Ipv4Addr) -> libc::sockaddr {
    // SAFETY: an address of zeros is valid, and the two types have the same size and family field.
    unsafe {
        let mut given: libc::sockaddr_in = zeroed();
        given.sin_family = libc::AF_INET as libc::sa_family_t;
        given.sin_addr.s_addr = u32::from(address).to_be();
        std::mem::transmute(given)
    }
}

/// Sets an interface's address and brings the interface up.
pub(crate) fn configure_interface(name: &str, address: std::net::Ipv4Addr, prefix: u32) -> io::Result<()> {
    let socket = socket(libc::AF_INET)?;
    // SAFETY: a request of zeros is valid.
    let mut request: libc::ifreq = unsafe { zeroed() };
    for (to, from) in request.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1).zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let mask = u32::MAX.checked_shl(32 - prefix).unwrap_or(0);
    let ask = |call: libc::c_ulong, request: &mut libc::ifreq| {
        // SAFETY: the pointer is to a request that lives through the call and has the field that the call
        // reads.
        check(unsafe { libc::ioctl(socket.as_raw_fd(), call as libc::Ioctl, std::ptr::from_mut(request)) })
    };
    request.ifr_ifru.ifru_addr = ipv4(address);
    ask(libc::SIOCSIFADDR as libc::c_ulong, &mut request)?;
    request.ifr_ifru.ifru_netmask = ipv4(mask.into());
    ask(libc::SIOCSIFNETMASK as libc::c_ulong, &mut request)?;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    ask(libc::SIOCSIFFLAGS as libc::c_ulong, &mut request)
}

/// Makes `gateway` the default route.
pub(crate) fn add_default_route(gateway: std::net::Ipv4Addr) -> io::Result<()> {
    let socket = socket(libc::AF_INET)?;
    // SAFETY: a route of zeros is valid.
    let mut route: libc::rtentry = unsafe { zeroed() };
    let anywhere = ipv4(std::net::Ipv4Addr::UNSPECIFIED);
    (route.rt_dst, route.rt_genmask, route.rt_gateway) = (anywhere, anywhere, ipv4(gateway));
    route.rt_flags = (libc::RTF_UP | libc::RTF_GATEWAY) as libc::c_ushort;
    // SAFETY: the pointer is to a route that lives through the call.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCADDRT as libc::Ioctl, &raw const route) })
}

/// Makes descriptor `to` a duplicate of `from`. `to` must have no owner.
pub(crate) fn duplicate(from: RawFd, to: RawFd) {
    // SAFETY: dup2 touches no memory. Callers pass standard descriptors, which have no owner.
    unsafe { libc::dup2(from, to) };
}

/// Stops a terminal from echoing its input. Other files stay unchanged.
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

/// Waits until a terminal has sent its output.
pub(crate) fn drain(fd: RawFd) {
    // SAFETY: tcdrain touches no memory.
    unsafe { libc::tcdrain(fd) };
}

/// Returns the time of a clock in nanoseconds. Every kernel must have the clock.
pub(crate) fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec that lives through the call.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Sleeps, by one relative nanosleep unless a signal interrupts it.
pub(crate) fn nanosleep(time: Duration) {
    let mut left = timespec(time);
    // SAFETY: both pointers are to a timespec that lives through the call; the kernel allows the same one
    // twice.
    while unsafe { libc::nanosleep(&left, &mut left) } != 0 {}
}

/// A timerfd for a moment of the monotonic clock.
pub(crate) struct Timer(OwnedFd);

impl Timer {
    /// Arms a timer that expires once.
    pub(crate) fn at(moment: Duration) -> io::Result<Self> {
        Self::armed(moment, Duration::ZERO)
    }

    /// Arms a timer that expires first at `moment`, and then in each `period`, unless that is zero.
    pub(crate) fn armed(moment: Duration, period: Duration) -> io::Result<Self> {
        // SAFETY: timerfd_create touches no memory.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC) };
        check(fd.min(0))?;
        // SAFETY: the descriptor is new, and has no other owner.
        let timer = Self(unsafe { OwnedFd::from_raw_fd(fd) });
        let setting = libc::itimerspec { it_interval: timespec(period), it_value: timespec(moment) };
        // SAFETY: the pointer is to a setting that lives through the call; the null pointer asks for no old
        // one.
        let result =
            unsafe { libc::timerfd_settime(fd, libc::TFD_TIMER_ABSTIME, &setting, std::ptr::null_mut()) };
        check(result).map(|()| timer)
    }

    /// Waits until the timer has expired. Returns how often it has since the last wait.
    pub(crate) fn wait(&self) -> u64 {
        let mut expired = 0_u64;
        // SAFETY: the eight bytes that a timerfd returns go into a u64.
        while unsafe { libc::read(self.0.as_raw_fd(), (&raw mut expired).cast(), 8) } != 8 {}
        expired
    }
}

/// Returns the number of processors that are online.
pub(crate) fn online_processors() -> usize {
    // SAFETY: sysconf touches no memory.
    unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }.max(1) as usize
}

/// Keeps the calling thread on one processor.
pub(crate) fn run_on(processor: usize) {
    // SAFETY: a set of zeros is valid and empty, and the kernel reads it during the call. A processor beyond
    // the set's end is not set.
    unsafe {
        let mut set: libc::cpu_set_t = zeroed();
        libc::CPU_SET(processor, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
    }
}

/// Fills `bytes`, at most 256, with random bytes of the kernel.
pub(crate) fn get_random(bytes: &mut [u8]) {
    // SAFETY: the kernel writes at most the length given to the buffer.
    while unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) } != bytes.len().cast_signed() {
    }
}

/// Reads the processor's time-stamp counter.
pub(crate) fn tsc() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and Linux lets programs use it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Returns system, release, version and machine.
pub(crate) fn uname() -> String {
    // SAFETY: a utsname of zeros is valid, with empty strings.
    let mut name: libc::utsname = unsafe { zeroed() };
    // SAFETY: the pointer is to a utsname that lives through the call.
    unsafe { libc::uname(&mut name) };
    let fields = [&name.sysname, &name.release, &name.version, &name.machine];
    // SAFETY: each field ends with a zero byte, from the kernel or from the zeros before.
    let text = fields.map(|field| unsafe { CStr::from_ptr(field.as_ptr()) }.to_string_lossy());
    text.join(" ")
}

/// Calls `handler` when the signal arrives. It may only do what signal-safety(7) allows.
pub(crate) fn at_signal(signal: libc::c_int, handler: extern "C" fn(libc::c_int)) -> io::Result<()> {
    // SAFETY: zeros are a valid sigaction (no flags, empty mask). The handler has the signature that an
    // action without SA_SIGINFO asks for, and lives as long as the program.
    let done = unsafe {
        let mut action: libc::sigaction = zeroed();
        action.sa_sigaction = handler as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(signal, &action, std::ptr::null_mut())
    };
    check(done)
}

/// Syncs all file systems.
pub(crate) fn sync() {
    // SAFETY: sync touches no memory.
    unsafe { libc::sync() };
}

/// Ends the machine by reboot(2) with `command`. Returns only if the call failed.
pub(crate) fn reboot(command: libc::c_int) -> io::Error {
    // SAFETY: reboot touches no memory.
    unsafe { libc::reboot(command) };
    io::Error::last_os_error()
}

fn timespec(time: Duration) -> libc::timespec {
    libc::timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
