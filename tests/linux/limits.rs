//! Rate limits hold within a tenth, from above and from below. They are set while the guest runs, and far below what even an
//! emulated processor can do.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use volt_tests::{Boot, Guest, Network, Scratch, needs};

use crate::images::blank;

/// Bytes a second.
const BANDWIDTH: u32 = 1_000_000;
/// Requests a second.
const OPS: u32 = 200;
/// For about how long it is measured, when what the bucket held has been used up.
const SECONDS: u32 = 5;

/// A limit by a bucket of a twentieth of a second.
fn limit(kind: &str, rate: u32) -> String {
    format!(r#"{{"{kind}":{{"size":{},"refill_time":50}}}}"#, rate / 20)
}

fn change(guest: &Guest, path: &str, change: &str) {
    assert_eq!(guest.ask("PATCH", path, change), (204, String::new()), "{path} {change}");
}

fn assert_rate(what: &str, amount: u32, took: Duration, limit: u32) {
    let ratio = f64::from(amount) / took.as_secs_f64() / f64::from(limit);
    println!("{what}: {amount} in {took:?}, {ratio:.3} of the limit");
    assert!((0.9..=1.1).contains(&ratio), "{what}: {amount} in {took:?}, {ratio:.3} of the limit");
}

/// How long the guest takes to read so many KiB from its disk, by so many at once.
fn reading(guest: &mut Guest, kib: u32, step: u32) -> Duration {
    let start = Instant::now();
    guest.order(&format!("read-direct /dev/vda {kib} {step}"));
    start.elapsed()
}

#[test]
fn bandwidth_and_requests_of_a_disk() {
    needs!(linux);
    let scratch = Scratch::new();
    let words = format!("path={}", blank(&scratch, "image", 16).display());
    let mut guest = Boot::linux().device(["--disk", &words]).start();
    guest.wait_until_ready();
    let limited = |guest: &Guest, limit: &str| {
        change(guest, "/drives/disk0", &format!(r#"{{"drive_id":"disk0","rate_limiter":{limit}}}"#));
    };
    println!("without a limit: 8 MiB in {:?}", reading(&mut guest, 8192, 16));

    limited(&guest, &limit("bandwidth", BANDWIDTH));
    reading(&mut guest, 128, 16);
    let kib = BANDWIDTH * SECONDS / 1024 / 16 * 16;
    assert_rate("a disk's bandwidth", kib * 1024, reading(&mut guest, kib, 16), BANDWIDTH);

    limited(&guest, &limit("ops", OPS));
    reading(&mut guest, 4 * 20, 4);
    let requests = OPS * SECONDS;
    assert_rate("a disk's requests", requests, reading(&mut guest, requests * 4, 4), OPS);

    // And none at all again.
    limited(&guest, "{}");
    let took = reading(&mut guest, 8192, 16);
    assert!(took < Duration::from_secs(8192 * 1024 / u64::from(BANDWIDTH) / 2), "{took:?}");
}

/// Bytes that a guest's sink tells of with one of its own.
const STEP: usize = 32 << 10;

/// How long the guest takes to receive so many steps. It is always behind: some are under way.
fn sending(stream: &mut TcpStream, steps: usize) -> Duration {
    let step = [0x5a; STEP];
    let start = Instant::now();
    for _ in 0..steps {
        stream.write_all(&step).unwrap();
        stream.read_exact(&mut [0]).unwrap();
    }
    start.elapsed()
}

fn receiving(stream: &mut TcpStream, steps: usize) -> Duration {
    let mut step = [0; STEP];
    let start = Instant::now();
    for _ in 0..steps {
        stream.read_exact(&mut step).unwrap();
    }
    start.elapsed()
}

#[test]
fn bandwidth_of_a_network_both_ways() {
    needs!(linux, network);
    let network = Network::new();
    network.add_tap("tap0", "10.77.0.1/24");
    let mut guest = Boot::linux().device(["--net", "tap=tap0"]).inside(network.namespace()).start();
    guest.wait_until_ready();
    guest.order("net eth0 10.77.0.2/24");
    guest.order(&format!("tcp-sink 80 {}", STEP >> 10));
    guest.order("tcp-source 81");
    let limited = |limiter: &str| {
        let limit = limit("bandwidth", BANDWIDTH);
        change(&guest, "/network-interfaces/eth0", &format!(r#"{{"iface_id":"eth0","{limiter}":{limit}}}"#));
    };
    let steps = (BANDWIDTH * SECONDS) as usize / STEP;
    let amount = (steps * STEP) as u32;

    let mut sink = network.connect("10.77.0.2:80");
    println!("without a limit: {amount} in {:?}", sending(&mut sink, steps));
    limited("rx_rate_limiter");
    // A few steps under way all the time, so that the guest never waits for the host.
    for _ in 0..4 {
        sink.write_all(&[0x5a; STEP]).unwrap();
    }
    sending(&mut sink, 4);
    assert_rate("a network's bandwidth to the guest", amount, sending(&mut sink, steps), BANDWIDTH);

    let mut source = network.connect("10.77.0.2:81");
    println!("without a limit: {amount} in {:?}", receiving(&mut source, steps));
    limited("tx_rate_limiter");
    // What the host has already, and the guest's socket had.
    receiving(&mut source, 6_000_000 / STEP);
    assert_rate("a network's bandwidth from the guest", amount, receiving(&mut source, steps), BANDWIDTH);
}
