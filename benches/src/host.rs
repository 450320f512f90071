//! The host that a measurement is worth something on.

use std::fs;
use std::process::Command;

/// The CPU's name, as the kernel has it.
#[must_use]
pub fn cpu() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = info.lines().find(|line| line.starts_with("model name"));
    line.and_then(|line| line.split(": ").nth(1)).unwrap_or("unknown").to_owned()
}

/// Number of CPUs.
#[must_use]
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The kernel's version, without what its builder added to it.
#[must_use]
pub fn kernel() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    release.trim().split('-').next().unwrap_or("unknown").to_owned()
}

/// Processes that ran or wanted to, averaged over the last minute.
#[must_use]
pub fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0)
}

/// Circumstances of a measurement: the host, its load, and the date.
#[must_use]
pub fn circumstances(load: f64) -> String {
    let kvm = volt_vmm::internal::host::kvm_module().unwrap_or("unknown");
    let date = Command::new("date").args(["-u", "+%F"]).output();
    let date = date
        .map_or_else(|_| "no date".into(), |date| String::from_utf8_lossy(&date.stdout).trim().to_owned());
    format!(
        "{}, {} CPUs; Linux {}; KVM module {kvm}; load average at the start {load:.1}; {date}",
        cpu(),
        cpus(),
        kernel()
    )
}
