//! Use of processors, memory and disk.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use hyper::StatusCode;
use rustix::fs::statvfs;
use serde::Serialize;

use super::agent::Agent;
use crate::reply::Failure;

/// The answer of `/metrics`. Sizes are in bytes.
#[derive(Serialize)]
pub struct Metrics {
    ts: u64,
    cpu_count: usize,
    /// Since the last call, else since the boot.
    cpu_used_pct: f64,
    mem_total: u64,
    mem_used: u64,
    mem_cache: u64,
    disk_used: u64,
    disk_total: u64,
}

/// Measures.
pub fn metrics(agent: &Agent) -> Result<Metrics, Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot read /proc: {error}"))
    };
    let stat = fs::read_to_string("/proc/stat").map_err(failed)?;
    let memory = fs::read_to_string("/proc/meminfo").map_err(failed)?;
    let disk = statvfs("/").map_err(|error| failed(error.into()))?;
    let ticks = ticks(&stat);
    let (used, all) = agent.last_ticks.replace(ticks);
    let (used, all) = (ticks.0.saturating_sub(used), ticks.1.saturating_sub(all));
    let total = kib(&memory, "MemTotal:");
    Ok(Metrics {
        ts: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        cpu_count: stat.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu ")).count(),
        cpu_used_pct: if all == 0 { 0.0 } else { (used as f64 * 10_000.0 / all as f64).round() / 100.0 },
        mem_total: total,
        mem_used: total.saturating_sub(kib(&memory, "MemAvailable:")),
        mem_cache: kib(&memory, "Cached:"),
        disk_used: (disk.f_blocks - disk.f_bfree) * disk.f_frsize,
        disk_total: disk.f_blocks * disk.f_frsize,
    })
}

/// Ticks in use, and all ticks, of all processors.
fn ticks(stat: &str) -> (u64, u64) {
    let line = stat.lines().next().unwrap_or_default();
    // Later columns are parts of the first ones.
    let columns: Vec<u64> =
        line.split_whitespace().skip(1).take(8).filter_map(|text| text.parse().ok()).collect();
    let all: u64 = columns.iter().sum();
    let idle: u64 = columns.iter().skip(3).take(2).sum();
    (all - idle, all)
}

/// A line of `/proc/meminfo` in bytes.
fn kib(memory: &str, name: &str) -> u64 {
    let line = memory.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.split_whitespace().next().and_then(|text| text.parse::<u64>().ok()).unwrap_or_default() * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_waiting_ticks_are_not_used() {
        assert_eq!(ticks("cpu  10 1 5 80 4 0 0 0 7 7\ncpu0 1"), (16, 100));
        assert_eq!(kib("MemTotal:  5 kB\nCached: 2 kB\n", "Cached:"), 2048);
    }
}
