//! Network namespaces for VMs, their taps and the test's sockets. All addresses and names in one are free. A
//! namespace ends with its last user.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::namespace::Namespace;
use crate::patience::{output, wait_until};
use crate::streams::Limited;

/// A network namespace.
#[derive(Debug)]
pub struct Network(Namespace);

impl Network {
    /// Makes a network with 127.0.0.1 and nothing else.
    ///
    /// # Panics
    /// The host has none: the test must begin with `needs!(network)`.
    #[must_use]
    pub fn new() -> Self {
        let network = Self::try_new().expect("make a network namespace");
        network.ip("link set lo up");
        network
    }

    pub(crate) fn try_new() -> io::Result<Self> {
        let make = || {
            // SAFETY: memory safety does not depend on the thread's network namespace.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET)? };
            File::open("/proc/thread-self/ns/net")
        };
        let made = std::thread::spawn(make).join().expect("a thread that does not panic")?;
        Ok(Self(Namespace::Network(Arc::new(made))))
    }

    /// Returns the namespace, for VMs in it.
    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        &self.0
    }

    /// Calls `act` in the namespace. Sockets that it opens stay there.
    ///
    /// # Panics
    /// The call panics.
    pub fn inside<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        let enter_and_act = || {
            self.0.enter().expect("enter a network namespace");
            act()
        };
        std::thread::scope(|scope| {
            scope.spawn(enter_and_act).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs `ip` in the namespace.
    ///
    /// # Panics
    /// The command fails.
    pub fn ip(&self, words: &str) {
        let done = self.inside(|| output(Command::new("ip").args(words.split(' '))));
        assert!(done.status.success(), "ip {words}: {done:?}");
    }

    /// Gives an interface an address and brings it up.
    pub fn configure(&self, interface: &str, address: &str) {
        self.ip(&format!("addr add {address} dev {interface}"));
        self.ip(&format!("link set {interface} up"));
    }

    /// Makes a persistent tap with an address.
    ///
    /// # Panics
    /// The host refuses.
    pub fn add_tap(&self, name: &str, address: &str) {
        self.inside(|| make_tap(name)).unwrap_or_else(|error| panic!("cannot make tap {name}: {error}"));
        self.configure(name, address);
    }

    /// Connects to a guest in the network, as soon as the guest listens.
    ///
    /// # Panics
    /// The guest does not listen in time.
    #[must_use]
    pub fn connect(&self, address: &str) -> TcpStream {
        let address: SocketAddr = address.parse().expect("an address with a port");
        let mut stream = None;
        wait_until(&format!("{address} is reached over TCP"), || {
            let connect = || TcpStream::connect_timeout(&address, Duration::from_secs(5)).ok();
            stream = self.inside(connect);
            stream.is_some()
        });
        let stream = stream.expect("just connected");
        stream.limit().expect("set a time limit");
        stream
    }

    /// Listens in the network.
    ///
    /// # Panics
    /// The address is taken, or no interface has it.
    #[must_use]
    pub fn listen(&self, address: &str) -> TcpListener {
        self.inside(|| TcpListener::bind(address)).unwrap_or_else(|error| panic!("{address}: {error}"))
    }
}

impl Default for Network {
    fn default() -> Self {
        Self::new()
    }
}

/// Opens a tap of this name, for VMs that are started with its number: programs inherit it.
///
/// # Panics
/// The host has no taps.
#[must_use]
pub fn inherited_tap(name: &str) -> File {
    let open = || {
        let tap = open_tap(name)?;
        rustix::io::fcntl_setfd(&tap, rustix::io::FdFlags::empty())?;
        Ok::<_, io::Error>(tap)
    };
    open().unwrap_or_else(|error| panic!("cannot open tap {name}: {error}"))
}

fn make_tap(name: &str) -> io::Result<()> {
    let tap = open_tap(name)?;
    // SAFETY: TUNSETPERSIST takes a number.
    let is_kept = unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETPERSIST, 1) == 0 };
    if is_kept { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn open_tap(name: &str) -> io::Result<File> {
    let driver = File::options().read(true).write(true).open("/dev/net/tun")?;
    // SAFETY: a request of zeros is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1).zip(name.bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
    // SAFETY: TUNSETIFF takes an ifreq, which lives through the call.
    let made = unsafe { libc::ioctl(driver.as_raw_fd(), libc::TUNSETIFF, &raw mut request) == 0 };
    if made { Ok(driver) } else { Err(io::Error::last_os_error()) }
}
