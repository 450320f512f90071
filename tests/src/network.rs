//! Network namespaces for VMs, their taps and the test's sockets. All addresses and names in one are free. A
//! namespace ends with its last user.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::namespace::Namespace;
use crate::patience::{output, patience, wait_until};
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

    /// Makes a network with default routes, without which passt serves no version of IP. `203.0.113.1` and
    /// `2001:db8:1::1` are addresses of the host in it.
    ///
    /// # Panics
    /// The host refuses.
    #[must_use]
    pub fn with_a_way_out() -> Self {
        let network = Self::new();
        // A tap without a VM has no carrier, and its addresses of IPv6 would wait for one.
        let write = || std::fs::write("/proc/sys/net/ipv6/conf/default/accept_dad", "0");
        network.inside(write).expect("use addresses of IPv6 at once");
        network.add_tap("way", "192.0.2.1/24");
        network.ip("route add default via 192.0.2.254");
        network.ip("addr add 203.0.113.1/32 dev lo");
        for address in ["2001:db8::1/64", "fe80::1/64"] {
            network.ip(&format!("addr add {address} dev way"));
        }
        network.ip("-6 route add default via 2001:db8::fe dev way");
        network.ip("addr add 2001:db8:1::1/128 dev lo");
        network
    }

    /// Makes the network beyond that of [`Self::with_a_way_out`]: its host has `192.0.2.254`, `2001:db8::fe`
    /// and these addresses, and a cable leads there as long as the second value lives.
    ///
    /// # Panics
    /// The host refuses.
    #[must_use]
    pub fn beyond(&self, addresses: &[&str]) -> (Self, Cable) {
        let far = Self::new();
        let write = || std::fs::write("/proc/sys/net/ipv6/conf/default/accept_dad", "0");
        far.inside(write).expect("use addresses of IPv6 at once");
        far.add_tap("way", "192.0.2.254/24");
        far.ip("addr add 2001:db8::fe/64 dev way");
        for address in addresses {
            far.ip(&format!("addr add {address} dev way"));
        }
        let ends = [self, &far].map(|network| network.inside(|| open_tap("way")).expect("open a tap"));
        (far, Cable::between(ends))
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

/// A cable between two taps. It is cut on drop.
#[derive(Debug)]
pub struct Cable {
    thread: Option<std::thread::JoinHandle<()>>,
    /// Dropped to end the thread.
    stop: Option<io::PipeWriter>,
}

impl Cable {
    fn between([a, b]: [File; 2]) -> Self {
        let (stopped, stop) = io::pipe().expect("make a pipe");
        let carry = move || {
            loop {
                let mut ready = [PollFd::new(&a, PollFlags::IN), PollFd::new(&b, PollFlags::IN)].to_vec();
                ready.push(PollFd::new(&stopped, PollFlags::IN));
                if poll(&mut ready, None).is_err() {
                    continue;
                }
                let ready: Vec<_> = ready.iter().map(|entry| !entry.revents().is_empty()).collect();
                if ready[2] {
                    return;
                }
                for (is_ready, mut from, mut to) in [(ready[0], &a, &b), (ready[1], &b, &a)] {
                    let mut frame = vec![0; 70_000];
                    if is_ready && let Ok(len) = from.read(&mut frame) {
                        // A frame for a tap without room is lost, as on a cable.
                        let _ = to.write(&frame[..len]);
                    }
                }
            }
        };
        Self { thread: Some(std::thread::spawn(carry)), stop: Some(stop) }
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// A persistent tap that one user may open, outside of any [`Network`]. It is removed on drop.
#[derive(Debug)]
pub struct OwnedTap(String);

impl OwnedTap {
    /// Makes a tap whose name no other test has.
    ///
    /// # Panics
    /// The host has no taps.
    #[must_use]
    pub fn new(name: &str, user: u32) -> Self {
        let tap = Self(format!("j{}{name}", std::process::id()));
        make_tap(&tap.0).unwrap_or_else(|error| panic!("cannot make tap {}: {error}", tap.0));
        tap.give_to(user);
        tap
    }

    /// Returns the tap's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }

    /// Gives the tap to another user.
    ///
    /// # Panics
    /// The host refuses.
    pub fn give_to(&self, user: u32) {
        self.set(libc::TUNSETOWNER, user)
            .unwrap_or_else(|error| panic!("cannot give tap {} to {user}: {error}", self.0));
    }

    /// Changes the tap, once a VM that ends has left it.
    fn set(&self, request: libc::Ioctl, value: u32) -> io::Result<()> {
        let begun = Instant::now();
        loop {
            match open_tap(&self.0) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy && begun.elapsed() < patience() => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                opened => return set(&opened?, request, value),
            }
        }
    }
}

impl Drop for OwnedTap {
    fn drop(&mut self) {
        let _ = self.set(libc::TUNSETPERSIST, 0);
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
    set(&open_tap(name)?, libc::TUNSETPERSIST, 1)
}

/// Changes a tap by a call that takes a number.
fn set(tap: &File, request: libc::Ioctl, value: u32) -> io::Result<()> {
    // SAFETY: TUNSETPERSIST and TUNSETOWNER take a number.
    let is_set = unsafe { libc::ioctl(tap.as_raw_fd(), request, libc::c_ulong::from(value)) == 0 };
    if is_set { Ok(()) } else { Err(io::Error::last_os_error()) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cable_leads_to_the_network_beyond() {
        let near = Network::with_a_way_out();
        let (far, _cable) = near.beyond(&["192.0.2.77/24"]);
        let listener = far.listen("192.0.2.77:80");
        let mut stream = near.connect("192.0.2.77:80");
        let mut other = listener.accept().expect("the connection waits").0;
        stream.write_all(b"there").expect("write");
        let mut bytes = [0; 5];
        other.read_exact(&mut bytes).expect("read");
        assert_eq!(&bytes, b"there");
    }
}
