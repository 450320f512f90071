//! Tests with a real tap, in a network namespace of the test's thread. They need root and /dev/net/tun.

use std::os::fd::AsRawFd;
use std::process::Command;
use std::thread;

use super::*;
use crate::testing::limited;

/// An ethertype for experiments, which the host's stack ignores.
const OURS: [u8; 2] = [0x88, 0xb5];

/// Runs `test` in a network namespace of its own, if this host allows it.
fn isolated(test: impl FnOnce() + Send + 'static) {
    let name = crate::testing::running();
    let body = move || {
        // SAFETY: only this thread, and those that it starts, move to a new network namespace.
        let alone = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
        if !alone || std::fs::metadata("/dev/net/tun").is_err() {
            return crate::testing::skip_test(&name, "needs root and /dev/net/tun");
        }
        test();
    };
    let isolated = thread::Builder::new().name("isolated".into()).spawn(body).unwrap();
    limited("the test in its network ends", || isolated.join()).unwrap();
}

fn ip(arguments: &str) {
    let done = Command::new("ip").args(arguments.split(' ')).status().expect("iproute2 is installed");
    assert!(done.success(), "ip {arguments}");
}

fn tap(name: &str) -> NetConfig {
    config(NetBackend::Tap(name.into()))
}

/// Returns a socket that receives the host's frames from the tap, and sends to it.
fn host_side(name: &str) -> UnixDatagram {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    let name = std::ffi::CString::new(name).unwrap();
    let everything = (libc::ETH_P_ALL as u16).to_be();
    // SAFETY: plain system calls; the address is initialised in full, and nothing else owns the descriptor.
    // std's type is only used for send(2) and recv(2) on it.
    let socket = unsafe {
        let fd = libc::socket(libc::AF_PACKET, kind, i32::from(everything));
        assert!(fd >= 0, "a packet socket");
        let mut address: libc::sockaddr_ll = std::mem::zeroed();
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = everything;
        address.sll_ifindex = libc::if_nametoindex(name.as_ptr()) as i32;
        let len = size_of::<libc::sockaddr_ll>() as u32;
        assert_eq!(libc::bind(fd, (&raw const address).cast(), len), 0);
        UnixDatagram::from(OwnedFd::from_raw_fd(fd))
    };
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket
}

fn ours(number: usize, len: usize) -> Vec<u8> {
    let mut bytes = frame(number, len);
    bytes[..6].copy_from_slice(&[0xff; 6]);
    bytes[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    bytes[12..14].copy_from_slice(&OURS);
    bytes
}

fn is_ours(bytes: &[u8]) -> bool {
    bytes[12..14] == OURS
}

/// Sends frames both ways and checks that they arrive. Ignores frames of the host's own stack.
fn exchange(driver: &mut Driver, host: &UnixDatagram) {
    for (number, len) in [60, 200, 1514].into_iter().enumerate() {
        driver.ask(OUT, &[Part::Out(&with_header(&ours(number, len)))]);
        let got = std::iter::repeat_with(|| next_on(host)).find(|bytes| is_ours(bytes));
        assert_eq!(got, Some(ours(number, len)));

        host.send(&ours(number, len)).unwrap();
        loop {
            driver.send(IN, &[Part::In(2000)]);
            let bytes = next_in(driver);
            if is_ours(&bytes) {
                assert_eq!(bytes, ours(number, len));
                break;
            }
        }
    }
}

#[test]
fn frames_go_through_a_descriptor_of_a_tap_and_other_files_are_refused() {
    isolated(|| {
        let given = Tap::open("volt-fd").unwrap();
        let number = given.descriptor().as_raw_fd();
        let net = Net::open(&config(NetBackend::TapDescriptor(number))).unwrap();
        drop(given);
        let mut driver = Driver::new(net);
        ip("link set volt-fd up");
        exchange(&mut driver, &host_side("volt-fd"));
        let file = std::fs::File::open("/dev/null").unwrap();
        for number in [file.as_raw_fd(), 9999] {
            let error = Net::open(&config(NetBackend::TapDescriptor(number))).unwrap_err().to_string();
            assert!(error.contains(&format!("cannot use descriptor {number} as a tap")), "{error}");
        }
    });
}

#[test]
fn frames_go_through_a_tap_with_offloads_and_without() {
    isolated(|| {
        // Different names: a child of another test that has not called exec yet may still hold the first.
        for (name, offload) in [("volt0", true), ("volt1", false)] {
            let asked = NetConfig { offload, ..tap(name) };
            let mut driver = Driver::new(Net::open(&asked).unwrap());
            ip(&format!("link set {name} up"));
            let host = host_side(name);
            exchange(&mut driver, &host);
            assert_eq!(status(&mut driver), 1);
        }
    });
}

#[test]
fn guest_resumes_at_another_tap() {
    isolated(|| {
        let mut driver = Driver::new(Net::open(&tap("volt0")).unwrap());
        let device = Net::open(&tap("volt1")).unwrap();
        ip("link set volt1 up");
        driver.move_to(device);
        exchange(&mut driver, &host_side("volt1"));
    });
}

#[test]
fn deleted_tap_takes_only_the_link_down() {
    isolated(|| {
        for buffers in [0, 3] {
            let mut driver = Driver::new(Net::open(&tap("volt0")).unwrap());
            ip("link set volt0 up");
            for _ in 0..buffers {
                driver.send(IN, &[Part::In(2000)]);
            }
            ip("link delete volt0");
            for number in 0..70 {
                driver.ask(OUT, &[Part::Out(&with_header(&ours(number, 60)))]);
            }
            driver.until("the link is down", |driver| (status(driver) == 0).then_some(()));
            assert!(!driver.needs_reset());
        }
    });
}

#[test]
fn frames_are_dropped_while_a_tap_is_down_and_pass_again_afterwards() {
    isolated(|| {
        let mut driver = Driver::new(Net::open(&tap("volt0")).unwrap());
        ip("link set volt0 up");
        exchange(&mut driver, &host_side("volt0"));
        ip("link set volt0 down");
        for number in 0..70 {
            driver.ask(OUT, &[Part::Out(&with_header(&ours(number, 60)))]);
        }
        assert!(!driver.needs_reset() && status(&mut driver) == 1);
        ip("link set volt0 up");
        exchange(&mut driver, &host_side("volt0"));
    });
}

#[test]
fn tap_errors_name_their_cause() {
    isolated(|| {
        let refused = |name: &str| report(&Net::open(&tap(name)).unwrap_err());
        let _first = Net::open(&tap("volt0")).unwrap();
        let busy = refused("volt0");
        let holder = format!("another process uses it (process {}: ", std::process::id());
        assert!(busy.starts_with(&format!("cannot use tap volt0: {holder}")), "{busy}");
        assert!(busy.contains("no two can"), "{busy}");
        let no_tap = refused("lo");
        assert!(no_tap.starts_with("cannot use tap lo: it is not a tap"), "{no_tap}");
        let unprivileged = thread::spawn(|| {
            // SAFETY: the bare calls, unlike libc's functions, change this thread's credentials only.
            let dropped = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
            assert_eq!(dropped, 0);
            let forbidden = report(&Net::open(&tap("volt9")).unwrap_err());
            assert!(forbidden.starts_with("cannot ") && forbidden.contains("tap volt9"), "{forbidden}");
        });
        limited("the thread without privileges ends", || unprivileged.join()).unwrap();
    });
    for name in ["", "a-name-too-long0", "a/b", "tap%d", "..", "a b"] {
        let error = Net::open(&tap(name)).unwrap_err().to_string();
        assert!(error.starts_with(&format!("networks: tap {name:?}: ")), "{error}");
    }
}
