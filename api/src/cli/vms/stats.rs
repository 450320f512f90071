//! `volt-vmm stats`: processor time, memory and traffic of running VMs, as a live table.

use std::collections::BTreeMap;
use std::fs;
use std::io::{IsTerminal, Write as _, stdout};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;

use super::target::Target;
use crate::cli::{Outcome, complete, security};
use crate::client;
use crate::failure::Failure;
use crate::output::print::print;
use crate::output::table::Table;
use crate::process::exit::Status;
use crate::run_dir::listing;
use crate::run_dir::root::RunRoot;
use crate::run_dir::vm_dir::VmDir;

/// Time between two tables, and between the two samples of one.
const INTERVAL: Duration = Duration::from_secs(1);
/// Longest wait for the answers of all VMs.
const ANSWERS: Duration = Duration::from_secs(1);
/// Name of a vCPU's thread, before the vCPU's number.
const VCPU: &str = "volt-vcpu";
/// Clears a terminal and goes to its first line.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Show processor time, memory, and data of disks and networks of running VMs, each second until Ctrl-C
///
/// CPU counts the time of all vCPUs in the last second: 200 % are two busy vCPUs. OWN is memory of the VM
/// alone, and SHARED the base that clones have in common. READ and WRITTEN is data of all disks since the
/// VM's start, and RECEIVED and SENT that of all network devices.
///
/// Example: volt-vmm stats --no-stream web
#[derive(Debug, Args)]
pub(crate) struct Stats {
    /// Names of VMs, or beginnings of their ids [default: all that run]
    #[arg(value_name = "VM", add = complete::living_vms())]
    vms: Vec<String>,

    /// Print one table and end
    #[arg(long)]
    no_stream: bool,

    /// Print one result as JSON and end
    #[arg(long)]
    json: bool,
}

/// The use of a VM.
#[derive(Debug, Serialize)]
struct Usage {
    name: String,
    /// Share of the interval that all vCPUs ran; 1 is one busy vCPU.
    cpu: Option<f64>,
    /// Time of all vCPUs since the start.
    vcpu_seconds: Option<f64>,
    private_bytes: Option<u64>,
    base_bytes: Option<u64>,
    memory_mib: Option<u64>,
    #[serde(flatten)]
    traffic: Traffic,
}

/// Data of devices since the VM's start. Absent without such a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Traffic {
    disk_read_bytes: Option<u64>,
    disk_written_bytes: Option<u64>,
    net_received_bytes: Option<u64>,
    net_sent_bytes: Option<u64>,
}

impl Traffic {
    /// Sums up the devices of each kind.
    fn of(metrics: &str) -> Self {
        let bytes = |device: &str, operation: &str| {
            sum(metrics, "volt_vmm_device_bytes_total", |labels| {
                labels.starts_with(&format!("{{device=\"{device}-"))
                    && labels.ends_with(&format!(",operation=\"{operation}\"}}"))
            })
        };
        Self {
            disk_read_bytes: bytes("disk", "read"),
            disk_written_bytes: bytes("disk", "write"),
            net_received_bytes: bytes("net", "receive"),
            net_sent_bytes: bytes("net", "transmit"),
        }
    }
}

/// The sum of a family's samples with such labels, in Prometheus' text. Returns `None` if there is none.
fn sum(metrics: &str, family: &str, is_wanted: impl Fn(&str) -> bool) -> Option<u64> {
    let sample = |line: &str| {
        let (labels, value) = line.strip_prefix(family)?.rsplit_once(' ')?;
        is_wanted(labels).then(|| value.parse::<f64>().ok()).flatten()
    };
    metrics.lines().filter_map(sample).map(|value| value as u64).reduce(|a, b| a.saturating_add(b))
}

impl Stats {
    pub(crate) fn execute(self) -> Outcome {
        let mut vms = self.running()?;
        let mut before = Samples::take(&vms);
        loop {
            sleep(INTERVAL);
            if self.vms.is_empty() {
                vms = self.running()?;
            } else if !vms.iter().any(VmDir::is_alive) {
                // Those that were named; with --rm they have no name any more.
                return Ok(Status::Success);
            }
            let now = Samples::take(&vms);
            let usage = usage(&vms, &before, &now);
            before = now;
            if self.json || self.no_stream || !stdout().is_terminal() {
                print(&usage, self.json, table)?;
                return Ok(Status::Success);
            }
            let drawn = stdout().write_all(format!("{CLEAR}{}", table(&usage)).as_bytes());
            drawn
                .and_then(|()| stdout().flush())
                .map_err(|error| Failure::system("print the table", error))?;
        }
    }

    fn running(&self) -> Result<Vec<VmDir>, Failure> {
        if !self.vms.is_empty() {
            return self.vms.iter().map(|word| Target::find(word)?.with_name()).collect();
        }
        let all = RunRoot::existing()?.map(|root| listing::all(&root)).transpose()?.unwrap_or_default();
        Ok(all.into_iter().filter(VmDir::is_alive).collect())
    }
}

/// Times of all vCPUs of VMs, by id.
struct Samples {
    at: Instant,
    vcpus: BTreeMap<String, Duration>,
}

impl Samples {
    fn take(vms: &[VmDir]) -> Self {
        let time = |vm: &VmDir| Some((vm.record.id.clone(), vcpu_time(vm.record.pid?)?));
        Self { at: Instant::now(), vcpus: vms.iter().filter_map(time).collect() }
    }
}

/// The time of all vCPU threads of a process (`/proc/PID/task/TID/schedstat`, proc(5)). The first vCPU of a
/// restored VM has no thread of its own: it runs on the main one, whose time includes the restore.
fn vcpu_time(pid: u32) -> Option<Duration> {
    let pid = security::process_of_vm(pid.try_into().ok()?).to_string();
    let (mut sum, mut of_main, mut has_first) = (Duration::ZERO, Duration::ZERO, false);
    for task in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let time = || {
            // A thread that has just ended has no time any more.
            let nanos = read("schedstat").split(' ').next().and_then(|nanos| nanos.parse().ok());
            Duration::from_nanos(nanos.unwrap_or(0))
        };
        match read("comm").trim_end().strip_prefix(VCPU) {
            Some(number) => {
                has_first |= number == "0";
                sum += time();
            }
            None if task.file_name() == *pid => of_main = time(),
            None => {}
        }
    }
    Some(if has_first { sum } else { sum + of_main })
}

fn usage(vms: &[VmDir], before: &Samples, now: &Samples) -> Vec<Usage> {
    let alive: Vec<_> = vms.iter().filter(|vm| vm.is_alive()).collect();
    let sockets: Vec<&Path> = alive.iter().map(|vm| vm.record.api_socket.as_path()).collect();
    let metrics = client::get_all_texts(&sockets, "/metrics", ANSWERS);
    let interval = (now.at - before.at).as_secs_f64();
    let of = |(vm, metrics): (&&VmDir, Option<String>)| {
        let metrics = metrics.unwrap_or_default();
        let gauge = |family: &str| sum(&metrics, family, str::is_empty);
        let id = &vm.record.id;
        let time = now.vcpus.get(id).copied();
        let spent = time.zip(before.vcpus.get(id)).map(|(now, before)| now.saturating_sub(*before));
        Usage {
            name: vm.name().to_string(),
            cpu: spent.map(|spent| spent.as_secs_f64() / interval),
            vcpu_seconds: time.map(|time| time.as_secs_f64()),
            private_bytes: gauge("volt_vmm_memory_private_bytes"),
            base_bytes: gauge("volt_vmm_memory_base_bytes"),
            memory_mib: vm.config().map(|config| config.memory_mib),
            traffic: Traffic::of(&metrics),
        }
    };
    alive.iter().zip(metrics).map(of).collect()
}

fn table(usage: &Vec<Usage>) -> String {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let mib = |bytes: Option<u64>| {
        or_dash(bytes.map(|bytes| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))))
    };
    let mut table = Table::new([
        "NAME",
        "CPU",
        "VCPU TIME",
        "OWN",
        "SHARED",
        "MEMORY",
        "READ",
        "WRITTEN",
        "RECEIVED",
        "SENT",
    ]);
    for vm in usage {
        table.row([
            vm.name.clone(),
            or_dash(vm.cpu.map(|cpu| format!("{:.1} %", 100.0 * cpu))),
            or_dash(vm.vcpu_seconds.map(|seconds| format!("{seconds:.2} s"))),
            mib(vm.private_bytes),
            mib(vm.base_bytes),
            or_dash(vm.memory_mib.map(|mib| format!("{mib} MiB"))),
            mib(vm.traffic.disk_read_bytes),
            mib(vm.traffic.disk_written_bytes),
            mib(vm.traffic.net_received_bytes),
            mib(vm.traffic.net_sent_bytes),
        ]);
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_sums_up_the_devices_of_a_kind() {
        let metrics = "# HELP volt_vmm_device_bytes_total Data.\n\
            # TYPE volt_vmm_device_bytes_total counter\n\
            volt_vmm_device_bytes_total{device=\"disk-root\",operation=\"read\"} 512\n\
            volt_vmm_device_bytes_total{device=\"disk-root\",operation=\"write\"} 0\n\
            volt_vmm_device_bytes_total{device=\"disk-data\",operation=\"read\"} 1e3\n\
            volt_vmm_device_bytes_total{device=\"rng\",operation=\"requests\"} 7\n\
            volt_vmm_memory_private_bytes 4096\n";
        let traffic = Traffic {
            disk_read_bytes: Some(1512),
            disk_written_bytes: Some(0),
            net_received_bytes: None,
            net_sent_bytes: None,
        };
        assert_eq!(Traffic::of(metrics), traffic);
        assert_eq!(sum(metrics, "volt_vmm_memory_private_bytes", str::is_empty), Some(4096));
        assert_eq!(Traffic::of(""), Traffic::default());
    }

    #[test]
    fn unknown_values_are_dashes() {
        let mut vm = Usage {
            name: "web".to_owned(),
            cpu: Some(0.5),
            vcpu_seconds: Some(12.345),
            private_bytes: Some(3 << 20),
            base_bytes: None,
            memory_mib: Some(64),
            traffic: Traffic { disk_read_bytes: Some(5 << 19), ..Traffic::default() },
        };
        let line = |vm: &Usage| {
            table(&vec![Usage { name: vm.name.clone(), ..*vm }]).lines().nth(1).unwrap().to_owned()
        };
        assert_eq!(
            line(&vm),
            "web   50.0 %  12.35 s    3.0 MiB  -       64 MiB  2.5 MiB  -        -         -"
        );
        (vm.cpu, vm.vcpu_seconds) = (None, None);
        assert!(line(&vm).starts_with("web   -    -"), "{}", line(&vm));
    }
}
