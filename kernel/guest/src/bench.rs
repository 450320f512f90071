//! `bench-disk` and `bench-stream`: measure disks and streams by the guest's clock.
//!
//! Each prints one line, `measured OPERATIONS BYTES NANOSECONDS P50 P90 P99`. The last three are percentiles
//! of one operation's duration in nanoseconds.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::aio::Disk;
use crate::console;
use crate::outcome::Outcome;
use crate::system;

/// Bytes of one read or write of a stream.
const CHUNK: usize = 64 << 10;

/// `bench-disk PATH read|write|random-read|random-write KIB DEPTH MS`: sends requests of KIB to a raw disk
/// for MS, up to DEPTH at a time.
pub(crate) fn disk(path: &str, act: &str, kib: u64, depth: u64, ms: u64) -> Outcome {
    let named = |error: std::io::Error| format!("{path}: {error}");
    let (random, write) = match act {
        "read" => (false, false),
        "write" => (false, true),
        "random-read" => (true, false),
        "random-write" => (true, true),
        _ => return Err(format!("no such way to use a disk: {act}")),
    };
    let len = kib << 10;
    let size = File::open(path).and_then(|mut disk| disk.seek(SeekFrom::End(0))).map_err(named)?;
    let blocks = (size / len.max(1)).max(1);
    if len == 0 || depth == 0 || size < len {
        return Err(format!("{depth} requests of {kib} KiB at a time to a disk of {size} bytes"));
    }
    let mut disk = Disk::open(path, write, len as usize, depth as usize).map_err(named)?;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut number = 0;
    let mut next_offset = || {
        number += 1;
        // xorshift64 (Marsaglia)
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (if random { state } else { number }) % blocks * len
    };
    let mut measurement = Measurement::begin(ms);
    let mut started = vec![measurement.start; depth as usize];
    let mut finished: Vec<_> = (0..depth as usize).collect();
    let (mut wanted, mut in_flight) = (Vec::new(), 0);
    loop {
        let now = system::clock_ns(libc::CLOCK_MONOTONIC);
        if now < measurement.end {
            wanted.clear();
            for &slot in &finished {
                started[slot] = now;
                wanted.push((slot, next_offset()));
            }
            disk.submit(&wanted).map_err(named)?;
            in_flight += wanted.len();
        }
        if in_flight == 0 {
            break;
        }
        disk.wait(&mut finished).map_err(named)?;
        in_flight -= finished.len();
        let now = system::clock_ns(libc::CLOCK_MONOTONIC);
        finished.iter().for_each(|&slot| measurement.times.push(now - started[slot]));
    }
    measurement.bytes = measurement.times.len() as u64 * len;
    measurement.report();
    Ok(())
}

/// `bench-stream TO send|receive|ping MS`: moves bytes over a stream to `tcp:ADDRESS:PORT` or `vsock:PORT`.
///
/// The other side of `send` reads to the end and closes, that of `receive` writes while it can, and that of
/// `ping` returns each byte.
pub(crate) fn stream(to: &str, act: &str, ms: u64) -> Outcome {
    let named = |error: std::io::Error| format!("{to}: {error}");
    let mut stream = match to.split_once(':') {
        Some(("tcp", address)) => {
            let stream = TcpStream::connect(address).map_err(named)?;
            stream.set_nodelay(true).map_err(named)?;
            File::from(OwnedFd::from(stream))
        }
        Some(("vsock", port)) => {
            let port = port.parse().map_err(|_| format!("{port}: no port"))?;
            File::from(system::vsock_connect(port).map_err(named)?)
        }
        _ => return Err(format!("no such stream: {to}")),
    };
    let mut bytes = vec![7; CHUNK];
    let mut measurement = Measurement::begin(ms);
    let mut before = measurement.start;
    while before < measurement.end {
        let moved = match act {
            "send" => stream.write(&bytes),
            "receive" => stream.read(&mut bytes),
            "ping" => stream.write_all(&[1]).and_then(|()| stream.read_exact(&mut bytes[..1])).map(|()| 1),
            _ => return Err(format!("no such way to use a stream: {act}")),
        };
        match moved.map_err(named)? {
            0 => return Err(format!("{to}: the other side has closed it")),
            moved => measurement.bytes += moved as u64,
        }
        let now = system::clock_ns(libc::CLOCK_MONOTONIC);
        measurement.times.push(now - before);
        before = now;
    }
    if act == "send" {
        // The other side closes the stream after the last byte, so the time includes all bytes' arrival.
        system::shut_down_writing(stream.as_raw_fd()).map_err(named)?;
        let _ = stream.read(&mut bytes);
    }
    measurement.report();
    Ok(())
}

/// The operations of a benchmark and their durations.
struct Measurement {
    start: u64,
    end: u64,
    bytes: u64,
    times: Vec<u64>,
}

impl Measurement {
    /// Begins a benchmark of `ms` milliseconds.
    fn begin(ms: u64) -> Self {
        let start = system::clock_ns(libc::CLOCK_MONOTONIC);
        Self { start, end: start + ms * 1_000_000, bytes: 0, times: Vec::with_capacity(1 << 16) }
    }

    /// Ends the benchmark and prints its line.
    fn report(mut self) {
        let ns = system::clock_ns(libc::CLOCK_MONOTONIC) - self.start;
        self.times.sort_unstable();
        let count = self.times.len();
        let percentile =
            |percent: usize| self.times.get((count * percent).div_ceil(100).saturating_sub(1)).unwrap_or(&0);
        let [p50, p90, p99] = [50, 90, 99].map(percentile);
        console::line(&format!("measured {count} {} {ns} {p50} {p90} {p99}", self.bytes));
    }
}
