//! Rate limits hold within a tenth in both directions. They are set while the guest runs, far below the speed
//! of an emulated processor.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use volt_tests::{Boot, Guest, Network, Scratch, needs};

use crate::device::images::blank;

/// Bytes a second.
const BANDWIDTH: u32 = 250_000;
/// Requests a second.
const OPS: u32 = 40;
/// Seconds of a measurement, roughly.
const SECONDS: u32 = 6;

/// Removes a limit. A change keeps the limits that it does not name.
const NONE: &str = r#"{"size":0,"refill_time":0}"#;

/// Returns a limit by a bucket with the tokens of one second, which evens out short stalls. Each measurement
/// first uses the initial tokens up.
fn limit(kind: &str, rate: u32) -> String {
    format!(r#"{{"{kind}":{{"size":{rate},"refill_time":1000}}}}"#)
}

fn change(guest: &Guest, path: &str, change: &str) {
    assert_eq!(guest.ask("PATCH", path, change), (204, String::new()), "{path} {change}");
}

/// The most measurements of a limit. A stalled guest may be too slow, but nothing makes it too fast.
const ATTEMPTS: u32 = 3;

fn assert_rate(what: &str, amount: u32, limit: u32, mut take: impl FnMut() -> Duration) {
    for attempt in 1..=ATTEMPTS {
        let took = take();
        let ratio = f64::from(amount) / took.as_secs_f64() / f64::from(limit);
        println!("{what}: {amount} in {took:?}, {ratio:.3} of the limit");
        assert!(ratio <= 1.1, "{what}: {amount} in {took:?}, {ratio:.3} of the limit");
        if ratio >= 0.9 {
            return;
        }
        assert!(attempt < ATTEMPTS, "{what}: {amount} in {took:?}, {ratio:.3} of the limit");
    }
}

/// Measures how long the guest takes to read `more` KiB in steps of `step` KiB, after `first` KiB.
fn reading(guest: &mut Guest, step: u32, first: u32, more: u32) -> Duration {
    guest.type_in(&format!("read-direct /dev/vda {step} {first} {more}\n")).wait_for("now the others");
    let start = Instant::now();
    guest.wait_for("ok read-direct");
    start.elapsed()
}

#[test]
fn disk_keeps_its_limits_of_bandwidth_and_requests() {
    needs!(linux);
    const STEP: u32 = 32;
    let scratch = Scratch::new();
    let words = format!("path={}", blank(&scratch, "image", 16).display());
    let mut guest = Boot::linux().device(["--disk", &words]).start();
    guest.wait_until_ready();
    let limited = |guest: &Guest, limit: &str| {
        change(guest, "/drives/disk0", &format!(r#"{{"drive_id":"disk0","rate_limiter":{limit}}}"#));
    };
    let steps = BANDWIDTH * SECONDS / 1024 / STEP;
    let free = reading(&mut guest, STEP, 0, steps * STEP);
    println!("without a limit: {steps} requests of {STEP} KiB in {free:?}");

    limited(&guest, &limit("bandwidth", BANDWIDTH));
    assert_rate("a disk's bandwidth", steps * STEP * 1024, BANDWIDTH, || {
        reading(&mut guest, STEP, BANDWIDTH / 512, steps * STEP)
    });

    limited(&guest, &format!(r#"{{"bandwidth":{NONE}}}"#));
    limited(&guest, &limit("ops", OPS));
    let requests = OPS * SECONDS;
    assert_rate("a disk's requests", requests, OPS, || reading(&mut guest, 4, 2 * OPS * 4, requests * 4));

    // Without limits the disk is fast again.
    limited(&guest, &format!(r#"{{"ops":{NONE}}}"#));
    let again = reading(&mut guest, STEP, 0, steps * STEP);
    assert!(again < Duration::from_secs(u64::from(SECONDS) / 2), "{again:?}");
}

/// Bytes that the guest's sink acknowledges with one byte.
const STEP: usize = 32 << 10;

/// Measures how long the guest takes to receive `steps` steps. Some steps are always under way.
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
fn network_keeps_its_limit_of_bandwidth_both_ways() {
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

    // The test measures the payload. The limit also counts headers: 66 bytes per frame of up to 1514 bytes
    // or, with offloads, 64 KiB.
    let at_first = 2 * BANDWIDTH as usize / STEP;
    let mut sink = network.connect("10.77.0.2:80");
    println!("without a limit: {amount} in {:?}", sending(&mut sink, steps));
    limited("rx_rate_limiter");
    // A few steps are always under way, so the guest never waits for the host.
    for _ in 0..4 {
        sink.write_all(&[0x5a; STEP]).unwrap();
    }
    sending(&mut sink, at_first);
    assert_rate("a network's bandwidth to the guest", amount, BANDWIDTH, || sending(&mut sink, steps));

    limited("tx_rate_limiter");
    let mut source = network.connect("10.77.0.2:81");
    receiving(&mut source, at_first);
    assert_rate("a network's bandwidth from the guest", amount, BANDWIDTH, || receiving(&mut source, steps));
}
