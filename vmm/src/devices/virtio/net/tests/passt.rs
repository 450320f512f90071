//! A real passt, on a host that has a network. The guest's side of ARP and TCP is played by hand.

use std::net::{Ipv4Addr, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};

use super::*;
use crate::testing::{limited, wait_until};

/// Says so where the program is missing, or a network for it to use.
fn is_there() -> bool {
    let routes = std::fs::read_to_string("/proc/net/route").unwrap_or_default();
    let default = routes.lines().any(|route| route.split_whitespace().nth(1) == Some("00000000"));
    let there = default && Command::new("passt").arg("--version").output().is_ok();
    if !there {
        crate::testing::skip("needs passt and a default route");
    }
    there
}

/// A port below those that the kernel chooses by itself, another one each time. Asking the kernel for one would hold it for a
/// moment, and in a child of another test that has not called exec yet even longer.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = std::process::id() as u16 % 1000 * 10;
    20_000 + first + NEXT.fetch_add(1, Ordering::SeqCst) % 10
}

/// Who has 169.254.2.2? passt says that it has, whatever is asked for.
fn question(mac: &[u8]) -> Vec<u8> {
    let about = [&[0, 1, 8, 0, 6, 4, 0, 1][..], mac, &[169, 254, 2, 1], &[0; 6], &[169, 254, 2, 2]].concat();
    [&[0xff; 6][..], mac, &[8, 6], &about].concat()
}

fn is_answer(bytes: &[u8], mac: &[u8]) -> bool {
    bytes.len() >= 42 && bytes[..6] == *mac && bytes[12..14] == [8, 6] && bytes[20..22] == [0, 2]
}

/// Waits for a frame.
fn look_for(driver: &mut Driver, found: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    driver.until("the frame comes that is looked for", |driver| {
        driver.send(IN, &[Part::In(2000)]);
        Some(next_in(driver)).filter(|bytes| found(bytes))
    })
}

fn mac(driver: &mut Driver) -> Vec<u8> {
    let mut bytes = vec![0; 6];
    driver.transport.read(0x100, &mut bytes);
    bytes
}

fn ask_around(driver: &mut Driver) {
    let mac = mac(driver);
    driver.ask(OUT, &[Part::Out(&with_header(&question(&mac)))]);
    look_for(driver, |bytes| is_answer(bytes, &mac));
}

#[test]
fn passt_answers_and_leads_ports_of_this_host_into_the_guest() {
    if !is_there() {
        return;
    }
    let (one, other) = (free_port(), free_port());
    let passt = NetBackend::Passt { forward: vec![(one, 80), (other, 2222)] };
    let net = Net::open(&config(passt.clone())).unwrap();
    assert_eq!(net.features() & feature::OFFLOAD, 0);
    let mut driver = Driver::new(net);
    ask_around(&mut driver);
    for (port, inside) in [(one, 80), (other, 2222_u16)] {
        let caller = std::thread::spawn(move || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap());
        // TCP over IPv4, to the port, with SYN.
        look_for(&mut driver, |bytes| {
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

    // Where the guest goes on it has another passt.
    driver.move_to(Net::open(&config(NetBackend::Passt { forward: vec![] })).unwrap());
    ask_around(&mut driver);
}

#[test]
fn a_guest_that_goes_on_is_reached_before_it_has_said_anything() {
    if !is_there() {
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
        // As soon as it listens.
        let caller = std::thread::spawn(move || {
            wait_until("passt listens", || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
        });
        // Whatever it is that passt sends for it: it is to the guest, not to everybody.
        look_for(&mut driver, |bytes| bytes.len() > 47 && bytes[23] == 6 && bytes[..6] == mac[..]);
        limited("the caller is connected", || caller.join()).unwrap();
    }
}

#[test]
fn passt_ends_with_its_owner() {
    if !is_there() {
        return;
    }
    let passt = Passt::start(&[], Some(1400), [2; 6]).unwrap();
    let process = format!("/proc/{}", passt.id());
    assert!(std::fs::metadata(&process).is_ok());
    drop(passt);
    assert!(std::fs::metadata(&process).is_err());
}

#[test]
fn without_its_passt_the_link_is_down() {
    if !is_there() {
        return;
    }
    let passt = Passt::start(&[], None, [2; 6]).unwrap();
    let process = passt.id() as i32;
    let asked = config(NetBackend::Passt { forward: vec![] });
    let mut driver = Driver::new(Net::new(&asked, address::from_id("eth0"), Box::new(passt)));
    ask_around(&mut driver);
    // SAFETY: it is the child that was just started, and still is, since nobody has waited for it.
    assert_eq!(unsafe { libc::kill(process, libc::SIGKILL) }, 0);
    // It is noticed when there is something to receive into, or to send.
    driver.send(IN, &[Part::In(2000)]);
    driver.until("the link is down", |driver| (status(driver) == 0).then_some(()));
    driver.ask(OUT, &[Part::Out(&with_header(&frame(0, 60)))]);
    assert!(!driver.needs_reset());
}

#[test]
fn ports_that_cannot_be_forwarded_are_refused() {
    let refused =
        |forward: Vec<_>| Net::open(&config(NetBackend::Passt { forward })).unwrap_err().to_string();
    assert_eq!(refused(vec![(0, 80)]), "networks: forward 0 to port 80 of the guest: 0 is no port");
    assert_eq!(refused(vec![(8080, 0)]), "networks: forward 8080 to port 0 of the guest: 0 is no port");
    let port = free_port();
    let twice =
        format!("networks: forward {port} to port 81 of the guest: the port of the host is there twice");
    assert_eq!(refused(vec![(port, 80), (port, 81)]), twice);
}
