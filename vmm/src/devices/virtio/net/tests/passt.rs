//! Tests with a real passt, on a host with a network. The tests play the guest's side of ARP and TCP.

use std::net::{Ipv4Addr, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};

use super::*;
use crate::devices::virtio::net::passt::Options;
use crate::testing::{limited, wait_until};

/// Returns whether the program and a network are available, and skips the test otherwise.
fn has_passt() -> bool {
    let routes = std::fs::read_to_string("/proc/net/route").unwrap_or_default();
    let default = routes.lines().any(|route| route.split_whitespace().nth(1) == Some("00000000"));
    let available = default && Command::new("passt").arg("--version").output().is_ok();
    if !available {
        crate::testing::skip("needs passt and a default route");
    }
    available
}

/// Returns a new port below the kernel's ephemeral range. The kernel would hold a port of its choice for a
/// moment, and for longer in a child of another test that has not called exec yet.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = std::process::id() as u16 % 1000 * 10;
    20_000 + first + NEXT.fetch_add(1, Ordering::SeqCst) % 10
}

/// Returns an ARP request for 169.254.2.2. passt answers for every address.
fn arp_request(mac: &[u8]) -> Vec<u8> {
    let about = [&[0, 1, 8, 0, 6, 4, 0, 1][..], mac, &[169, 254, 2, 1], &[0; 6], &[169, 254, 2, 2]].concat();
    [&[0xff; 6][..], mac, &[8, 6], &about].concat()
}

fn is_answer(bytes: &[u8], mac: &[u8]) -> bool {
    bytes.len() >= 42 && bytes[..6] == *mac && bytes[12..14] == [8, 6] && bytes[20..22] == [0, 2]
}

/// Waits for a frame that matches.
fn wait_for_frame(driver: &mut Driver, found: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    driver.until("the expected frame comes", |driver| {
        driver.send(IN, &[Part::In(2000)]);
        Some(next_in(driver)).filter(|bytes| found(bytes))
    })
}

fn mac(driver: &mut Driver) -> Vec<u8> {
    let mut bytes = vec![0; 6];
    driver.transport.read(0x100, &mut bytes);
    bytes
}

fn assert_arp_works(driver: &mut Driver) {
    let mac = mac(driver);
    driver.ask(OUT, &[Part::Out(&with_header(&arp_request(&mac)))]);
    wait_for_frame(driver, |bytes| is_answer(bytes, &mac));
}

#[test]
fn passt_answers_arp_and_forwards_ports_of_this_host() {
    if !has_passt() {
        return;
    }
    let (one, other) = (free_port(), free_port());
    let passt = NetBackend::Passt { forward: vec![(one, 80), (other, 2222)] };
    let net = Net::open(&config(passt.clone())).unwrap();
    assert_eq!(net.features() & feature::OFFLOAD, 0);
    let mut driver = Driver::new(net);
    assert_arp_works(&mut driver);
    for (port, inside) in [(one, 80), (other, 2222_u16)] {
        let caller = std::thread::spawn(move || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap());
        // A TCP SYN over IPv4 to the port.
        wait_for_frame(&mut driver, |bytes| {
            bytes.len() > 47
                && bytes[12..14] == [8, 0]
                && bytes[23] == 6
                && bytes[36..38] == inside.to_be_bytes()
                && bytes[47] == 2
        });
        limited("the caller is connected", || caller.join()).unwrap();
    }
    let taken = report(&Net::open(&config(passt)).unwrap_err());
    assert!(taken.starts_with(&format!("cannot forward port {one} of 127.0.0.1: ")), "{taken}");
    // The holder is this process, which started the passt that listens.
    let holder = format!("another process listens there (process {}: ", std::process::id());
    assert!(taken.contains(&holder) && taken.contains("no two can"), "{taken}");

    // The guest has another passt after the move.
    driver.move_to(Net::open(&config(NetBackend::Passt { forward: vec![] })).unwrap());
    assert_arp_works(&mut driver);
}

#[test]
fn restored_guest_is_reachable_before_it_sends() {
    if !has_passt() {
        return;
    }
    let ports = [free_port(), free_port()];
    let passt = |port| Net::open(&config(NetBackend::Passt { forward: vec![(port, 80)] })).unwrap();
    let mut driver = Driver::new(passt(ports[0]));
    for (port, goes_on) in ports.into_iter().zip([false, true]) {
        if goes_on {
            driver.move_to(passt(port));
        }
        let mac = mac(&mut driver);
        // As soon as passt listens.
        let caller = std::thread::spawn(move || {
            wait_until("passt listens", || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
        });
        // passt may send any frame for the connection, if it is addressed to the guest and not a broadcast.
        wait_for_frame(&mut driver, |bytes| bytes.len() > 47 && bytes[23] == 6 && bytes[..6] == mac[..]);
        limited("the caller is connected", || caller.join()).unwrap();
    }
}

#[test]
fn passt_ends_with_its_owner() {
    if !has_passt() {
        return;
    }
    let passt = Passt::start(&Options { mtu: Some(1400), ..Default::default() }, [2; 6]).unwrap();
    let process = format!("/proc/{}", passt.id());
    assert!(std::fs::metadata(&process).is_ok());
    drop(passt);
    assert!(std::fs::metadata(&process).is_err());
}

#[test]
fn passt_that_was_killed_is_started_again() {
    if !has_passt() {
        return;
    }
    let passt = Passt::start(&Options::default(), [2; 6]).unwrap();
    let process = passt.id() as i32;
    let asked = config(NetBackend::Passt { forward: vec![] });
    let mut driver = Driver::new(Net::new(&asked, mac::from_id("eth0"), Box::new(passt)));
    assert_arp_works(&mut driver);
    // SAFETY: the process is the child that was just started; it still exists, because it was not waited
    // for.
    assert_eq!(unsafe { libc::kill(process, libc::SIGKILL) }, 0);
    // The device notices when it receives or sends. The guest hears of both changes of the link.
    driver.send(IN, &[Part::In(2000)]);
    driver.until("the driver is notified", |driver| (driver.get(0x60) & 2 != 0).then_some(()));
    driver.until("the link is up", |driver| (status(driver) == 1).then_some(()));
    assert_arp_works(&mut driver);
    assert!(!driver.needs_reset());
}

#[test]
fn passt_that_lives_gives_its_ports_to_the_next_one() {
    if !has_passt() {
        return;
    }
    let options = Options { forward: vec![(free_port(), 80)], ..Options::default() };
    let mut passt = Passt::start(&options, [2; 6]).unwrap();
    let first = passt.id();
    // It ends a moment after its socket does.
    wait_until("another one has the port", || matches!(passt.restart([2; 6]), Some(Ok(()))));
    assert_ne!(passt.id(), first);
}

#[test]
fn ports_that_cannot_be_forwarded_are_refused() {
    let refused =
        |forward: Vec<_>| Net::open(&config(NetBackend::Passt { forward })).unwrap_err().to_string();
    assert_eq!(refused(vec![(0, 80)]), "networks: forward 0 to port 80 of the guest: 0 is not a port");
    assert_eq!(refused(vec![(8080, 0)]), "networks: forward 8080 to port 0 of the guest: 0 is not a port");
    let port = free_port();
    let twice = format!(
        "networks: forward {port} to port 81 of the guest: another rule forwards the same port of the host"
    );
    assert_eq!(refused(vec![(port, 80), (port, 81)]), twice);
}
