//! Every family of metrics: its name, its kind, its help and its samples. docs/metrics.md repeats the table.

use volt_vmm::{
    DeviceMetrics, Durations, ExitReason, Exits, FaultKind, MemoryUsage, Metrics, OperationMetrics,
    QueueMetrics, RunState, SnapshotAct, SnapshotMetrics,
};

use super::Picture;
use super::text::{Labels, Samples};
use crate::process::log;

/// Kind of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    /// The name in the text.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A family.
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) help: &'static str,
    pub(super) samples: fn(&Picture, &mut Samples<'_>),
}

const fn counter(name: &'static str, help: &'static str, samples: fn(&Picture, &mut Samples<'_>)) -> Family {
    Family { name, kind: Kind::Counter, help, samples }
}

const fn gauge(name: &'static str, help: &'static str, samples: fn(&Picture, &mut Samples<'_>)) -> Family {
    Family { name, kind: Kind::Gauge, help, samples }
}

const fn histogram(
    name: &'static str,
    help: &'static str,
    samples: fn(&Picture, &mut Samples<'_>),
) -> Family {
    Family { name, kind: Kind::Histogram, help, samples }
}

/// All families, in the order of the text.
pub(super) const FAMILIES: &[Family] = &[
    gauge("volt_vmm_vms", "VMs by state.", |picture, to| {
        let state = match picture.state {
            None => "not started",
            Some(RunState::Running) => "running",
            Some(RunState::Paused) => "paused",
            Some(RunState::Ended) => "ended",
        };
        to.add(&[("state", state)], 1.0);
    }),
    counter("volt_vmm_vcpu_exits_total", "Exits of a vCPU to volt-vmm, by reason.", |picture, to| {
        each_exit(picture, |labels, exits| to.add(labels, exits.count as f64));
    }),
    counter("volt_vmm_vcpu_exit_seconds_total", "Time of handling these exits.", |picture, to| {
        each_exit(picture, |labels, exits| to.add(labels, exits.sum.as_secs_f64()));
    }),
    histogram(
        "volt_vmm_restore_seconds",
        "Restores, from an open snapshot to a running VM.",
        |picture, to| {
            let phases = picture.metrics.as_ref().and_then(|metrics| metrics.restore);
            phases.into_iter().for_each(|phases| to.histogram(&[], &Durations::of(phases.total())));
        },
    ),
    histogram("volt_vmm_restore_phase_seconds", "Phases of these restores.", restore_phases),
    gauge("volt_vmm_memory_private_bytes", "Guest memory that belongs to a VM alone.", |picture, to| {
        memory(picture, to, |memory| Some(memory.private_bytes));
    }),
    gauge("volt_vmm_memory_base_bytes", "Memory under guests, which clones share.", |picture, to| {
        memory(picture, to, |memory| Some(memory.base_bytes));
    }),
    counter("volt_vmm_memory_given_back_bytes_total", "Memory that guests gave back.", |picture, to| {
        of_vm(picture, |metrics| to.add(&[], metrics.given_back_bytes as f64));
    }),
    histogram(
        "volt_vmm_page_fault_seconds",
        "Page faults of memory that is filled on touch.",
        |picture, to| {
            let faults = picture.metrics.as_ref().and_then(|metrics| metrics.faults);
            for faults in faults.iter().flatten() {
                to.histogram(&[("kind", fault_kind(faults.kind))], &faults.latency);
            }
        },
    ),
    gauge("volt_vmm_touched_chunks", "Chunks of packed memory that a page fault fetched.", |picture, to| {
        memory(picture, to, |memory| memory.chunks.map(|chunks| chunks.on_touch));
    }),
    gauge("volt_vmm_prefetched_chunks", "Chunks that were read ahead.", |picture, to| {
        memory(picture, to, |memory| memory.chunks.map(|chunks| chunks.ahead));
    }),
    gauge(
        "volt_vmm_prefetch_hits",
        "Chunks that were read ahead, and that the VM touched.",
        |picture, to| {
            memory(picture, to, |memory| memory.chunks.map(|chunks| chunks.ahead - chunks.in_vain));
        },
    ),
    gauge("volt_vmm_prefetch_pages", "Pages of the working set read ahead so far.", |picture, to| {
        memory(picture, to, |memory| memory.prefetch.map(|prefetch| prefetch.read));
    }),
    histogram("volt_vmm_device_operation_seconds", "Operations of virtio devices.", |picture, to| {
        each_operation(picture, |labels, operation| to.histogram(labels, &operation.latency));
    }),
    counter("volt_vmm_device_bytes_total", "Data of these operations.", |picture, to| {
        each_operation(picture, |labels, operation| to.add(labels, operation.bytes as f64));
    }),
    counter("volt_vmm_device_failed_operations_total", "Operations that failed.", |picture, to| {
        each_operation(picture, |labels, operation| to.add(labels, operation.failed as f64));
    }),
    counter("volt_vmm_queue_turns_total", "Turns of a device with work in a queue.", |picture, to| {
        each_queue(picture, |labels, queue| to.add(labels, queue.turns as f64));
    }),
    counter("volt_vmm_queue_stalls_total", "Waits of a queue for the guest or the host.", |picture, to| {
        each_queue(picture, |labels, queue| to.add(labels, queue.stalls as f64));
    }),
    counter("volt_vmm_rate_limit_waits_total", "Waits of a queue for its rate limit.", |picture, to| {
        each_queue(picture, |labels, queue| to.add(labels, queue.limit_waits as f64));
    }),
    counter("volt_vmm_rate_limit_wait_seconds_total", "Time of these waits.", |picture, to| {
        each_queue(picture, |labels, queue| to.add(labels, queue.limit_waited.as_secs_f64()));
    }),
    counter("volt_vmm_device_notifications_total", "Wakes of a device by its driver.", |picture, to| {
        each_device(picture, |labels, device| to.add(labels, device.notifications as f64));
    }),
    counter("volt_vmm_device_interrupts_total", "Interrupts of a device.", |picture, to| {
        each_device(picture, |labels, device| to.add(labels, device.interrupts as f64));
    }),
    counter("volt_vmm_device_failures_total", "Stops of a device until a reset.", |picture, to| {
        each_device(picture, |labels, device| to.add(labels, device.failures as f64));
    }),
    counter("volt_vmm_policy_events_total", "Acts of the policy of a network device.", |picture, to| {
        policy_events(picture, to);
    }),
    counter("volt_vmm_vsock_connections_total", "Connections of guests by vsock.", |picture, to| {
        vsock(picture, to, |device| device.connections);
    }),
    counter("volt_vmm_vsock_connections_ended_total", "Ends of these connections.", |picture, to| {
        vsock(picture, to, |device| device.connections_ended);
    }),
    counter("volt_vmm_serial_bytes_total", "Bytes through the serial port.", |picture, to| {
        of_vm(picture, |metrics| {
            to.add(&[("direction", "receive")], metrics.serial.received_bytes as f64);
            to.add(&[("direction", "transmit")], metrics.serial.sent_bytes as f64);
        });
    }),
    counter("volt_vmm_serial_dropped_bytes_total", "Serial output that its limit dropped.", |picture, to| {
        of_vm(picture, |metrics| to.add(&[], metrics.serial.dropped_bytes as f64));
    }),
    histogram("volt_vmm_snapshot_seconds", "Snapshots, forks and rewinds.", |picture, to| {
        each_act(picture, |labels, act| to.histogram(labels, &act.duration));
    }),
    histogram("volt_vmm_snapshot_pause_seconds", "Pauses of guests for these.", |picture, to| {
        each_act(picture, |labels, act| to.histogram(labels, &act.paused));
    }),
    histogram("volt_vmm_snapshot_disk_stop_seconds", "Stops of disks before the pauses.", |picture, to| {
        each_act(picture, |labels, act| to.histogram(labels, &act.disks_stopped));
    }),
    counter(
        "volt_vmm_snapshot_failures_total",
        "Snapshots, forks and rewinds that failed.",
        |picture, to| {
            each_act(picture, |labels, act| to.add(labels, act.failed as f64));
        },
    ),
    counter("volt_vmm_api_requests_total", "Requests to the API.", |picture, to| {
        for ((method, path), outcomes) in picture.counts.requests() {
            for (outcome, count) in [("done", outcomes.done), ("refused", outcomes.refused)] {
                to.add(&[("method", &method), ("path", &path), ("outcome", outcome)], count as f64);
            }
        }
    }),
    counter("volt_vmm_log_lines_lost_total", "Lines that the log did not take.", |_, to| {
        to.add(&[], log::lost_lines() as f64);
    }),
    counter(
        "volt_vmm_metrics_lines_lost_total",
        "Lines that the file of metrics did not take.",
        |picture, to| {
            to.add(&[], picture.lost_lines as f64);
        },
    ),
];

fn of_vm(picture: &Picture, write: impl FnOnce(&Metrics)) {
    if let Some(metrics) = &picture.metrics {
        write(metrics);
    }
}

/// Writes a sample without labels of the VM's memory.
fn memory(picture: &Picture, to: &mut Samples<'_>, value: impl Fn(&MemoryUsage) -> Option<u64>) {
    let memory = picture.metrics.as_ref().and_then(|metrics| metrics.memory);
    memory.as_ref().and_then(value).into_iter().for_each(|value| to.add(&[], value as f64));
}

fn restore_phases(picture: &Picture, to: &mut Samples<'_>) {
    let Some(phases) = picture.metrics.as_ref().and_then(|metrics| metrics.restore) else { return };
    for (phase, took) in [
        ("prepare", phases.prepare),
        ("machine", phases.machine),
        ("devices", phases.devices),
        ("state", phases.state),
        ("ahead", phases.ahead),
        ("resume", phases.resume),
    ] {
        to.histogram(&[("phase", phase)], &Durations::of(took));
    }
}

fn each_exit(picture: &Picture, mut write: impl FnMut(Labels<'_>, &Exits)) {
    of_vm(picture, |metrics| {
        for (vcpu, exits) in metrics.vcpus.iter().enumerate() {
            let vcpu = vcpu.to_string();
            for exits in exits {
                write(&[("vcpu", &vcpu), ("reason", exit_reason(exits.reason))], exits);
            }
        }
    });
}

fn exit_reason(reason: ExitReason) -> &'static str {
    match reason {
        ExitReason::PioRead => "pio_read",
        ExitReason::PioWrite => "pio_write",
        ExitReason::MmioRead => "mmio_read",
        ExitReason::MmioWrite => "mmio_write",
        ExitReason::EndOfInterrupt => "end_of_interrupt",
        ExitReason::Interrupted => "interrupted",
        ExitReason::Ended => "ended",
        ExitReason::Failed => "failed",
    }
}

fn fault_kind(kind: FaultKind) -> &'static str {
    match kind {
        FaultKind::Read => "read",
        FaultKind::Zero => "zero",
        FaultKind::Present => "present",
        FaultKind::Failed => "failed",
    }
}

fn each_device(picture: &Picture, mut write: impl FnMut(Labels<'_>, &DeviceMetrics)) {
    of_vm(picture, |metrics| {
        metrics.devices.iter().for_each(|device| write(&[("device", &device.name)], device));
    });
}

fn each_operation(picture: &Picture, mut write: impl FnMut(Labels<'_>, &OperationMetrics)) {
    each_device(picture, |_, device| {
        for operation in &device.operations {
            write(&[("device", &device.name), ("operation", operation.name)], operation);
        }
    });
}

fn each_queue(picture: &Picture, mut write: impl FnMut(Labels<'_>, &QueueMetrics)) {
    each_device(picture, |_, device| {
        for queue in &device.queues {
            write(&[("device", &device.name), ("queue", queue.name)], queue);
        }
    });
}

/// Writes each act of the policy of each network device.
fn policy_events(picture: &Picture, to: &mut Samples<'_>) {
    each_device(picture, |_, device| {
        if device.name.starts_with("net-") {
            for (act, count) in device.policy.iter() {
                to.add(&[("device", &device.name), ("act", act.name())], count as f64);
            }
        }
    });
}

fn vsock(picture: &Picture, to: &mut Samples<'_>, value: impl Fn(&DeviceMetrics) -> u64) {
    of_vm(picture, |metrics| {
        let vsock = metrics.devices.iter().find(|device| device.name == "vsock");
        vsock.into_iter().for_each(|device| to.add(&[], value(device) as f64));
    });
}

fn each_act(picture: &Picture, mut write: impl FnMut(Labels<'_>, &SnapshotMetrics)) {
    of_vm(picture, |metrics| {
        for act in &metrics.snapshots {
            let kind = match act.act {
                SnapshotAct::Full => "full",
                SnapshotAct::Diff => "diff",
                SnapshotAct::InMemory => "memory",
                SnapshotAct::Rewind => "rewind",
            };
            write(&[("kind", kind)], act);
        }
    });
}
