//! A line of Firecracker's metrics: its objects and keys, and the numbers that they have here.
//!
//! A key is left out where volt-vmm has no such number. A number of a table is one since the last line, as
//! Firecracker's `SharedIncMetric` is, unless its table says otherwise.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value};
use volt_vmm::{DeviceMetrics, ExitReason, Exits, MetadataMetrics, Metrics};

use crate::rest::counts::{ApiCounts, LastDurations, TimedAct};

/// Times from the start of the process, or of its jailer, to the reading of the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Startup {
    wall_us: Option<u64>,
    processor_us: Option<u64>,
}

impl Startup {
    /// The times up to now, by those of the start.
    pub(crate) fn measured(start_us: Option<u64>, cpu_us: Option<u64>, parent_us: Option<u64>) -> Self {
        let now = |clock| {
            let now = clock_gettime(clock);
            now.tv_sec.cast_unsigned() * 1_000_000 + now.tv_nsec.cast_unsigned() / 1_000
        };
        let since = |clock, start| now(clock).saturating_sub(start);
        Self {
            wall_us: start_us.map(|start| since(ClockId::Monotonic, start)),
            processor_us: cpu_us
                .map(|start| since(ClockId::ProcessCPUTime, start) + parent_us.unwrap_or_default()),
        }
    }
}

/// A number of an object, by its key.
type Numbers<T> = &'static [(&'static str, fn(&T) -> u64)];

const DISK: Numbers<DeviceMetrics> = &[
    ("event_fails", |disk| disk.failures),
    ("execute_fails", |disk| EXECUTED.iter().map(|name| failed(disk, name)).sum()),
    ("invalid_reqs_count", |disk| failed(disk, "invalid")),
    ("flush_count", |disk| done(disk, "flush")),
    ("queue_event_count", |disk| disk.notifications),
    ("read_bytes", |disk| bytes(disk, "read")),
    ("write_bytes", |disk| bytes(disk, "write")),
    ("read_count", |disk| done(disk, "read")),
    ("write_count", |disk| done(disk, "write")),
    ("rate_limiter_throttled_events", |disk| limit_waits(disk, "requests")),
    ("io_engine_throttled_events", |_| 0), // the engine takes as many requests as the queue has
];
const EXECUTED: [&str; 6] = ["read", "write", "flush", "name", "discard", "write_zeroes"];
/// Sums of latencies, with their shortest and longest ones.
const DISK_AGGREGATES: [(&str, &str); 2] = [("read_agg", "read"), ("write_agg", "write")];
const NETWORK: Numbers<DeviceMetrics> = &[
    ("event_fails", |network| network.failures),
    ("no_rx_avail_buffer", |network| stalls(network, "receive")),
    ("rx_rate_limiter_throttled", |network| limit_waits(network, "receive")),
    ("rx_bytes_count", |network| bytes(network, "receive")),
    ("rx_packets_count", |network| done(network, "receive")),
    ("rx_count", |network| done(network, "receive")),
    ("rx_fails", |network| failed(network, "receive")),
    ("tx_rate_limiter_throttled", |network| limit_waits(network, "transmit")),
    ("tx_bytes_count", |network| bytes(network, "transmit")),
    ("tx_packets_count", |network| done(network, "transmit")),
    ("tx_count", |network| done(network, "transmit")),
    ("tx_fails", |network| failed(network, "transmit")),
];
const VSOCK: Numbers<DeviceMetrics> = &[
    ("rx_bytes_count", |vsock| bytes(vsock, "receive")),
    ("rx_packets_count", |vsock| done(vsock, "receive")),
    ("tx_bytes_count", |vsock| bytes(vsock, "transmit")),
    ("tx_packets_count", |vsock| done(vsock, "transmit")),
    ("conns_added", |vsock| vsock.connections),
    ("conns_removed", |vsock| vsock.connections_ended),
];
const ENTROPY: Numbers<DeviceMetrics> = &[
    ("entropy_event_fails", |entropy| entropy.failures),
    ("entropy_event_count", |entropy| done(entropy, "requests")),
    ("entropy_bytes", |entropy| bytes(entropy, "requests")),
    ("entropy_rate_limiter_throttled", |entropy| limit_waits(entropy, "requests")),
];
const BALLOON: Numbers<DeviceMetrics> = &[
    ("event_fails", |balloon| balloon.failures),
    ("inflate_count", |balloon| turns(balloon, "inflate")),
    ("deflate_count", |balloon| turns(balloon, "deflate")),
    ("stats_updates_count", |balloon| done(balloon, "statistics")),
    ("free_page_report_count", |balloon| turns(balloon, "report")),
    ("free_page_report_freed", |balloon| bytes(balloon, "report")),
    ("free_page_hint_count", |balloon| turns(balloon, "hint")),
    ("free_page_hint_freed", |balloon| bytes(balloon, "hint")),
];
/// The metadata service of a network device.
const METADATA: Numbers<MetadataMetrics> = &[
    ("rx_accepted", |service| service.frames),
    ("rx_accepted_unusual", |service| service.dropped_frames),
    ("rx_count", |service| service.frames.saturating_sub(service.dropped_frames)),
    ("rx_no_token", |service| service.requests_without_token),
    ("rx_invalid_token", |service| service.requests_with_bad_token),
    ("tx_bytes", |service| service.sent_bytes),
    ("tx_count", |service| service.sent_frames),
    ("tx_frames", |service| service.sent_frames),
    ("connections_created", |service| service.connections),
    ("connections_destroyed", |service| service.connections_ended),
];
const I8042: Numbers<Metrics> = &[
    ("read_count", |metrics| metrics.i8042.reads),
    ("write_count", |metrics| metrics.i8042.writes),
    ("reset_count", |metrics| metrics.i8042.resets),
];
const UART: Numbers<Metrics> = &[
    ("read_count", |metrics| metrics.serial.received_bytes),
    ("write_count", |metrics| metrics.serial.sent_bytes),
    ("rate_limiter_dropped_bytes", |metrics| metrics.serial.dropped_bytes),
];
const INTERRUPTS: Numbers<Metrics> =
    &[("triggers", |metrics| metrics.devices.iter().map(|device| device.interrupts).sum())];
/// Exits of all vCPUs, and the sums of their times.
const VCPU: [(&str, Option<&str>, ExitReason); 5] = [
    ("exit_io_in", Some("exit_io_in_agg"), ExitReason::PioRead),
    ("exit_io_out", Some("exit_io_out_agg"), ExitReason::PioWrite),
    ("exit_mmio_read", Some("exit_mmio_read_agg"), ExitReason::MmioRead),
    ("exit_mmio_write", Some("exit_mmio_write_agg"), ExitReason::MmioWrite),
    ("failures", None, ExitReason::Failed),
];
/// Durations of the last act of a kind, in microseconds, of the request and of the call. They stay.
const LATENCIES: [(&str, &str, TimedAct); 5] = [
    ("full_create_snapshot", "vmm_full_create_snapshot", TimedAct::FullSnapshot),
    ("diff_create_snapshot", "vmm_diff_create_snapshot", TimedAct::DiffSnapshot),
    ("load_snapshot", "vmm_load_snapshot", TimedAct::Load),
    ("pause_vm", "vmm_pause_vm", TimedAct::Pause),
    ("resume_vm", "vmm_resume_vm", TimedAct::Resume),
];
/// Requests: their object, method and path, and the keys of all and of refused ones. Paths may share keys.
const REQUESTS: [(&str, &str, &str, &str, Option<&str>); 21] = [
    ("get_api_requests", "GET", "/", "instance_info_count", None),
    ("get_api_requests", "GET", "/machine-config", "machine_cfg_count", None),
    ("get_api_requests", "GET", "/mmds", "mmds_count", None),
    ("get_api_requests", "GET", "/version", "vmm_version_count", None),
    ("put_api_requests", "PUT", "/actions", "actions_count", Some("actions_fails")),
    ("put_api_requests", "PUT", "/boot-source", "boot_source_count", Some("boot_source_fails")),
    ("put_api_requests", "PUT", "/cpu-config", "cpu_cfg_count", Some("cpu_cfg_fails")),
    ("put_api_requests", "PUT", "/drives/{id}", "drive_count", Some("drive_fails")),
    ("put_api_requests", "PUT", "/logger", "logger_count", Some("logger_fails")),
    ("put_api_requests", "PUT", "/machine-config", "machine_cfg_count", Some("machine_cfg_fails")),
    ("put_api_requests", "PUT", "/metrics", "metrics_count", Some("metrics_fails")),
    ("put_api_requests", "PUT", "/mmds", "mmds_count", Some("mmds_fails")),
    ("put_api_requests", "PUT", "/mmds/config", "mmds_count", Some("mmds_fails")),
    ("put_api_requests", "PUT", "/network-interfaces/{id}", "network_count", Some("network_fails")),
    ("put_api_requests", "PUT", "/pmem/{id}", "pmem_count", Some("pmem_fails")),
    ("put_api_requests", "PUT", "/serial", "serial_count", Some("serial_fails")),
    ("put_api_requests", "PUT", "/vsock", "vsock_count", Some("vsock_fails")),
    ("patch_api_requests", "PATCH", "/drives/{id}", "drive_count", Some("drive_fails")),
    ("patch_api_requests", "PATCH", "/machine-config", "machine_cfg_count", Some("machine_cfg_fails")),
    ("patch_api_requests", "PATCH", "/mmds", "mmds_count", Some("mmds_fails")),
    ("patch_api_requests", "PATCH", "/network-interfaces/{id}", "network_count", Some("network_fails")),
];

fn done(device: &DeviceMetrics, operation: &str) -> u64 {
    device
        .operation(operation)
        .map_or(0, |operation| operation.latency.count().saturating_sub(operation.failed))
}

fn failed(device: &DeviceMetrics, operation: &str) -> u64 {
    device.operation(operation).map_or(0, |operation| operation.failed)
}

fn bytes(device: &DeviceMetrics, operation: &str) -> u64 {
    device.operation(operation).map_or(0, |operation| operation.bytes)
}

fn turns(device: &DeviceMetrics, queue: &str) -> u64 {
    device.queue(queue).map_or(0, |queue| queue.turns)
}

fn stalls(device: &DeviceMetrics, queue: &str) -> u64 {
    device.queue(queue).map_or(0, |queue| queue.stalls)
}

fn limit_waits(device: &DeviceMetrics, queue: &str) -> u64 {
    device.queue(queue).map_or(0, |queue| queue.limit_waits)
}

/// The sources of a line.
pub(crate) struct Line<'a> {
    pub(crate) metrics: &'a Metrics,
    pub(crate) counts: &'a ApiCounts,
    pub(crate) startup: Startup,
    /// Lines of metrics and of the log that their files did not take.
    pub(crate) lost_lines: u64,
    pub(crate) lost_log: u64,
}

impl Line<'_> {
    /// Writes the line of the time `now`, whose numbers count from the `last` one. Returns the numbers for
    /// the next line.
    pub(crate) fn since(&self, last: &HashMap<String, u64>, now: Duration) -> (String, HashMap<String, u64>) {
        let mut objects = Objects { last, numbers: HashMap::new(), written: Map::new() };
        self.add_api(&mut objects);
        self.add_machine(&mut objects);
        self.add_devices(&mut objects);
        let Objects { numbers, written, .. } = objects;
        let written = Value::Object(written).to_string();
        // Firecracker's lines begin with the time.
        let text = format!("{{\"utc_timestamp_ms\":{},{}\n", now.as_millis(), &written[1..]);
        (text, numbers)
    }

    fn add_api(&self, to: &mut Objects<'_>) {
        let Startup { wall_us, processor_us } = self.startup;
        for (key, number) in
            [("process_startup_time_us", wall_us), ("process_startup_time_cpu_us", processor_us)]
        {
            number.into_iter().for_each(|number| to.keep("api_server", key, number));
        }
        let requests = self.counts.requests();
        let mut sums = BTreeMap::new();
        for (object, method, path, all, refused) in REQUESTS {
            let found = requests.get(&(method.to_owned(), path.to_owned())).copied().unwrap_or_default();
            *sums.entry((object, all)).or_default() += found.done + found.refused;
            refused.into_iter().for_each(|key| *sums.entry((object, key)).or_default() += found.refused);
        }
        for ((object, key), sum) in sums {
            to.count(object, key, sum);
        }
        for (request_key, call_key, act) in LATENCIES {
            let LastDurations { request, call } = self.counts.last(act);
            to.keep("latencies_us", request_key, request.as_micros() as u64);
            to.keep("latencies_us", call_key, call.as_micros() as u64);
        }
        to.count("logger", "missed_metrics_count", self.lost_lines);
        to.count("logger", "missed_log_count", self.lost_log);
    }

    fn add_machine(&self, to: &mut Objects<'_>) {
        for (key, aggregate, reason) in VCPU {
            let exits = self.metrics.vcpus.iter().flatten().filter(|exits| exits.reason == reason);
            to.count("vcpu", key, exits.clone().map(|exits| exits.count).sum());
            if let Some(aggregate) = aggregate {
                let counted = exits.filter(|exits| exits.count > 0).map(|exits: &Exits| {
                    let Exits { shortest, longest, sum, .. } = exits;
                    (*shortest, *longest, *sum)
                });
                to.aggregate("vcpu", aggregate, counted);
            }
        }
        for (object, table) in [("i8042", I8042), ("uart", UART), ("interrupts", INTERRUPTS)] {
            table.iter().for_each(|(key, number)| to.count(object, key, number(self.metrics)));
        }
    }

    /// Adds an object for each disk and network interface, and one for all of them. The other devices have
    /// one each.
    fn add_devices(&self, to: &mut Objects<'_>) {
        for (kind, prefix, table, aggregates) in
            [("block", "disk-", DISK, &DISK_AGGREGATES[..]), ("net", "net-", NETWORK, &[])]
        {
            let mut all = BTreeMap::new();
            let mut latencies = Vec::new();
            for device in &self.metrics.devices {
                let Some(id) = device.name.strip_prefix(prefix) else { continue };
                let object = format!("{kind}_{id}");
                for (key, number) in table {
                    to.count(&object, key, number(device));
                    *all.entry(*key).or_default() += number(device);
                }
                for (key, operation) in aggregates {
                    let latency = device.operation(operation).map(|operation| operation.latency);
                    let times = latency.filter(|latency| latency.count() > 0);
                    let times = times.map(|times| (times.shortest, times.longest, times.sum));
                    to.aggregate(&object, key, times.into_iter());
                    latencies.push((*key, times));
                }
            }
            for (key, number) in all {
                to.count(kind, key, number);
            }
            for (key, _) in aggregates.iter().filter(|_| !latencies.is_empty()) {
                to.aggregate(
                    kind,
                    key,
                    latencies.iter().filter(|(of, _)| of == key).filter_map(|(_, times)| *times),
                );
            }
        }
        for (key, number) in METADATA {
            to.count("mmds", key, self.metrics.devices.iter().map(|device| number(&device.metadata)).sum());
        }
        for (name, object, table) in
            [("vsock", "vsock", VSOCK), ("rng", "entropy", ENTROPY), ("balloon", "balloon", BALLOON)]
        {
            for device in self.metrics.devices.iter().filter(|device| device.name == name) {
                table.iter().for_each(|(key, number)| to.count(object, key, number(device)));
            }
        }
    }
}

/// The objects of a line while it is made.
struct Objects<'a> {
    last: &'a HashMap<String, u64>,
    numbers: HashMap<String, u64>,
    written: Map<String, Value>,
}

impl Objects<'_> {
    /// Adds the growth of a number since the last line.
    fn count(&mut self, object: &str, key: &str, number: u64) {
        let growth = self.growth(format!("{object}.{key}"), number);
        self.keep(object, key, growth);
    }

    /// Adds a number as it is.
    fn keep(&mut self, object: &str, key: &str, number: u64) {
        self.object(object).insert(key.to_owned(), number.into());
    }

    /// Adds the shortest and longest of all times, which stay, and the growth of their sum.
    fn aggregate(
        &mut self,
        object: &str,
        key: &str,
        times: impl Iterator<Item = (Duration, Duration, Duration)> + Clone,
    ) {
        let micros = |duration: Duration| duration.as_micros() as u64;
        let shortest = times.clone().map(|(shortest, _, _)| micros(shortest)).min().unwrap_or(0);
        let longest = times.clone().map(|(_, longest, _)| micros(longest)).max().unwrap_or(0);
        let sum = micros(times.map(|(_, _, sum)| sum).sum());
        let sum = self.growth(format!("{object}.{key}.sum_us"), sum);
        let numbers = [("min_us", shortest), ("max_us", longest), ("sum_us", sum)];
        let numbers = numbers.map(|(key, number)| (key.to_owned(), number.into()));
        self.object(object).insert(key.to_owned(), Value::Object(numbers.into_iter().collect()));
    }

    fn growth(&mut self, name: String, number: u64) -> u64 {
        let growth = number.saturating_sub(self.last.get(&name).copied().unwrap_or(0));
        self.numbers.insert(name, number);
        growth
    }

    fn object(&mut self, name: &str) -> &mut Map<String, Value> {
        let object = self.written.entry(name).or_insert_with(|| Value::Object(Map::new()));
        object.as_object_mut().expect("only objects are inserted")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_count_from_the_last_line_and_others_stay() {
        let mut objects = Objects { last: &HashMap::new(), numbers: HashMap::new(), written: Map::new() };
        let times =
            |us: &[u64]| us.iter().map(|us| Duration::from_micros(*us)).map(|us| (us, us, us)).collect();
        let once: Vec<_> = times(&[3, 9]);
        objects.count("block", "read_count", 5);
        objects.keep("latencies", "pause_vm", 7);
        objects.aggregate("block", "read_agg", once.into_iter());
        let Objects { numbers, written, .. } = objects;
        assert_eq!(
            Value::Object(written),
            json!({
                "block": {"read_agg": {"max_us": 9, "min_us": 3, "sum_us": 12}, "read_count": 5},
                "latencies": {"pause_vm": 7},
            })
        );
        let mut objects = Objects { last: &numbers, numbers: HashMap::new(), written: Map::new() };
        let again: Vec<_> = times(&[3, 9, 4]);
        objects.count("block", "read_count", 6);
        objects.keep("latencies", "pause_vm", 7);
        objects.aggregate("block", "read_agg", again.into_iter());
        assert_eq!(
            Value::Object(objects.written),
            json!({
                "block": {"read_agg": {"max_us": 9, "min_us": 3, "sum_us": 4}, "read_count": 1},
                "latencies": {"pause_vm": 7},
            })
        );
    }

    #[test]
    fn startup_is_measured_from_the_times_that_are_given() {
        assert_eq!(Startup::measured(None, None, Some(9)), Startup::default());
        let Startup { wall_us, processor_us } = Startup::measured(Some(0), Some(0), Some(1 << 40));
        assert!(wall_us.unwrap() > 0 && processor_us.unwrap() >= 1 << 40);
    }
}
