//! `bench-disk`: measures disks by the guest's clock.
//!
//! Each measurement prints one line, `measured OPERATIONS BYTES NANOSECONDS P50 P90 P99`. The last three are
//! percentiles of one operation's duration in nanoseconds. A line `each NANOSECONDS…` follows with durations
//! of up to 256 operations, taken evenly from the shortest to the longest.

use std::fs::File;
use std::io::{Seek, SeekFrom};

use crate::aio::Disk;
use crate::console;
use crate::outcome::Outcome;
use crate::system;

/// Most durations of single operations that a measurement prints.
const MOST_PRINTED: usize = 256;

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

/// The operations of a benchmark and their durations.
pub(crate) struct Measurement {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) bytes: u64,
    pub(crate) times: Vec<u64>,
}

impl Measurement {
    /// Begins a benchmark of `ms` milliseconds.
    pub(crate) fn begin(ms: u64) -> Self {
        let start = system::clock_ns(libc::CLOCK_MONOTONIC);
        Self { start, end: start + ms * 1_000_000, bytes: 0, times: Vec::with_capacity(1 << 16) }
    }

    /// Ends the benchmark and prints its lines.
    pub(crate) fn report(mut self) {
        let ns = system::clock_ns(libc::CLOCK_MONOTONIC) - self.start;
        self.times.sort_unstable();
        let count = self.times.len();
        let percentile =
            |percent: usize| self.times.get((count * percent).div_ceil(100).saturating_sub(1)).unwrap_or(&0);
        let [p50, p90, p99] = [50, 90, 99].map(percentile);
        console::line(&format!("measured {count} {} {ns} {p50} {p90} {p99}", self.bytes));
        let printed = count.min(MOST_PRINTED);
        // The middle of each part of the sorted durations.
        let each = (0..printed).map(|part| self.times[(2 * part + 1) * count / (2 * printed)].to_string());
        console::line(&format!("each {}", each.collect::<Vec<_>>().join(" ")));
    }
}
