//! Work of one virtio device: its operations, its queues, its interrupts.
//!
//! The worker of the device counts, which is one thread at a time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::Counter;
use super::histogram::{Durations, Histogram};
use super::metadata::{MetadataCounters, MetadataMetrics};
use super::policy::{PolicyCounters, PolicyMetrics};

/// Most queues of a device.
const QUEUES: usize = 5;

/// An operation of a device's driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationKind {
    /// Its name, such as `read`.
    pub name: &'static str,
    /// Bytes of each chain that are a header of the device and no data.
    pub header: usize,
}

impl OperationKind {
    /// An operation whose chains have no header.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self { name, header: 0 }
    }

    /// An operation whose chains hold no data. The device adds bytes itself.
    #[must_use]
    pub const fn without_data(name: &'static str) -> Self {
        Self { name, header: usize::MAX }
    }
}

/// The operations of a device, and its queues. Each queue has one operation, in their order, unless
/// [`DeviceOperations::queues`] names the queues apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceOperations {
    pub operations: &'static [OperationKind],
    /// Names of the queues, if one queue has all operations.
    pub queues: Option<&'static [&'static str]>,
}

impl DeviceOperations {
    /// No operation is counted.
    pub const NONE: Self = Self { operations: &[], queues: None };
}

/// Counters of one device. It outlives the device's resets.
#[derive(Debug)]
pub struct DeviceCounters {
    names: DeviceOperations,
    operations: Box<[OperationCounters]>,
    queues: [QueueCounters; QUEUES],
    /// Times that the driver woke the device.
    pub notifications: Counter,
    /// Times that the device failed, and waits for a reset by its driver.
    pub failures: Counter,
    /// Connections made and ended.
    pub connections: ConnectionCounters,
    /// The metadata service of a network device.
    pub metadata: MetadataCounters,
    /// The policy of a network device.
    pub policy: PolicyCounters,
}

#[derive(Debug, Default)]
struct OperationCounters {
    latency: Histogram,
    bytes: Counter,
    failed: Counter,
}

#[derive(Debug, Default)]
struct QueueCounters {
    turns: Counter,
    stalls: Counter,
    /// Whether work waited at the end of the last turn.
    is_waiting: AtomicBool,
    waits: Counter,
    waited_nanos: Counter,
}

/// Connections of a device to the host.
#[derive(Debug, Default)]
pub struct ConnectionCounters {
    pub made: Counter,
    pub ended: Counter,
}

/// Work of a virtio device since the VM began, be it by a boot or a restore.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceMetrics {
    /// Name of the device, as in snapshots: `disk-ID`, `net-ID`, `vsock`, `rng`, `balloon` or `console`.
    pub name: String,
    /// DeviceOperations by kind.
    pub operations: Vec<OperationMetrics>,
    /// Queues, in the order of their numbers.
    pub queues: Vec<QueueMetrics>,
    /// Times that the driver woke the device.
    pub notifications: u64,
    /// Interrupts that the device sent.
    pub interrupts: u64,
    /// Times that the device failed and waited for a reset by its driver.
    pub failures: u64,
    /// Connections made to or from the guest. Only vsock has any.
    pub connections: u64,
    /// Connections that have ended.
    pub connections_ended: u64,
    /// Work of the metadata service. Only a network device has one.
    pub metadata: MetadataMetrics,
    /// Acts of its policy. Only a network device has one.
    pub policy: PolicyMetrics,
}

/// DeviceOperations of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OperationMetrics {
    /// Name of the kind.
    pub name: &'static str,
    /// Time from taking an operation off its queue to giving it back, with their number.
    pub latency: Durations,
    /// Bytes of data, without headers and those of failed operations. For a balloon's inflations, hints and
    /// reports: bytes of guest memory given back to the host.
    pub bytes: u64,
    /// DeviceOperations that failed: refused, dropped, or in error on the host.
    pub failed: u64,
}

/// Work on one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueMetrics {
    /// Name of the queue.
    pub name: &'static str,
    /// Turns of the device in which the queue had work.
    pub turns: u64,
    /// Times that work waited: for buffers of the guest, or for the host to take more.
    pub stalls: u64,
    /// Times that the rate limit made work wait.
    pub limit_waits: u64,
    /// Time that the work had to wait for the rate limit.
    pub limit_waited: Duration,
}

impl DeviceMetrics {
    /// The operations called `name`, if the device has them.
    #[must_use]
    pub fn operation(&self, name: &str) -> Option<&OperationMetrics> {
        self.operations.iter().find(|operation| operation.name == name)
    }

    /// The queue called `name`, if the device has it.
    #[must_use]
    pub fn queue(&self, name: &str) -> Option<&QueueMetrics> {
        self.queues.iter().find(|queue| queue.name == name)
    }
}

impl DeviceCounters {
    /// Counters of a device that has done nothing.
    #[must_use]
    pub(crate) fn new(names: DeviceOperations) -> Self {
        Self {
            names,
            operations: names.operations.iter().map(|_| OperationCounters::default()).collect(),
            queues: Default::default(),
            notifications: Counter::default(),
            failures: Counter::default(),
            connections: ConnectionCounters::default(),
            metadata: MetadataCounters::default(),
            policy: PolicyCounters::default(),
        }
    }

    /// Counts an operation that has ended well, with the bytes of its chain.
    pub(crate) fn done(&self, operation: usize, bytes: usize, took: Duration) {
        let Some(counters) = self.operations.get(operation) else { return };
        counters.latency.add(took);
        counters.bytes.add(bytes.saturating_sub(self.names.operations[operation].header) as u64);
    }

    /// Counts an operation that has failed.
    pub(crate) fn failed(&self, operation: usize, took: Duration) {
        let Some(counters) = self.operations.get(operation) else { return };
        counters.latency.add(took);
        counters.failed.add(1);
    }

    /// Adds bytes to an operation whose chains hold no data.
    pub(crate) fn add_bytes(&self, operation: usize, bytes: u64) {
        self.operations[operation].bytes.add(bytes);
    }

    /// Counts a turn in which a queue had work.
    pub(crate) fn turn(&self, queue: usize) {
        self.queues[queue].turns.add(1);
    }

    /// Says at the end of a turn whether work waits for the guest's buffers or for the host. A wait counts
    /// once, however many turns it takes.
    pub(crate) fn waits(&self, queue: usize, is_waiting: bool) {
        let QueueCounters { stalls, is_waiting: waited, .. } = &self.queues[queue];
        let has_waited = waited.load(Ordering::Relaxed);
        if has_waited != is_waiting {
            waited.store(is_waiting, Ordering::Relaxed);
            stalls.add(is_waiting.into());
        }
    }

    /// Counts the waits of a queue for its rate limit since the last call.
    pub(crate) fn limited(&self, queue: usize, waits: &mut LimitWaits) {
        let LimitWaits { count, waited, since: _ } = waits;
        self.queues[queue].waits.add(std::mem::take(count));
        self.queues[queue].waited_nanos.add(std::mem::take(waited).as_nanos() as u64);
    }

    /// The picture of the device called `name`, which sent so many interrupts.
    pub(crate) fn read(&self, name: &str, interrupts: u64) -> DeviceMetrics {
        let DeviceOperations { operations, queues } = self.names;
        // Failures are read first, so that no picture has more failures than operations.
        let read = |(operation, counters): (&OperationKind, &OperationCounters)| OperationMetrics {
            failed: counters.failed.get(),
            name: operation.name,
            latency: counters.latency.read(),
            bytes: counters.bytes.get(),
        };
        let names: Vec<_> = match queues {
            Some(queues) => queues.to_vec(),
            None => operations.iter().map(|operation| operation.name).collect(),
        };
        let queue = |(name, counters): (&'static str, &QueueCounters)| QueueMetrics {
            name,
            turns: counters.turns.get(),
            stalls: counters.stalls.get(),
            limit_waits: counters.waits.get(),
            limit_waited: Duration::from_nanos(counters.waited_nanos.get()),
        };
        DeviceMetrics {
            name: name.to_owned(),
            operations: operations.iter().zip(&self.operations).map(read).collect(),
            queues: names.into_iter().zip(&self.queues).map(queue).collect(),
            notifications: self.notifications.get(),
            interrupts,
            failures: self.failures.get(),
            connections: self.connections.made.get(),
            connections_ended: self.connections.ended.get(),
            metadata: self.metadata.read(),
            policy: self.policy.read(),
        }
    }
}

/// Waits for a rate limit that are not counted yet.
#[derive(Clone, Copy, Debug, Default)]
pub struct LimitWaits {
    count: u64,
    waited: Duration,
    /// Beginning of a wait that goes on.
    since: Option<Instant>,
}

impl LimitWaits {
    /// Work was refused. A wait begins, unless one goes on.
    pub(crate) fn refused(&mut self, now: Instant) {
        if self.since.is_none() {
            (self.since, self.count) = (Some(now), self.count + 1);
        }
    }

    /// Work was admitted, which ends a wait.
    pub(crate) fn admitted(&mut self, now: Instant) {
        if let Some(since) = self.since.take() {
            self.waited += now.saturating_duration_since(since);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: DeviceOperations = DeviceOperations {
        operations: &[OperationKind::new("read"), OperationKind { name: "send", header: 12 }],
        queues: None,
    };

    #[test]
    fn operations_count_for_their_kind_without_headers() {
        let counters = DeviceCounters::new(NAMES);
        counters.done(0, 512, Duration::from_micros(7));
        counters.done(1, 72, Duration::from_micros(9));
        counters.done(1, 5, Duration::ZERO);
        counters.failed(1, Duration::ZERO);
        counters.done(2, 1, Duration::ZERO);
        let read = counters.read("net-a", 4);
        let (reads, sends) = (read.operation("read").unwrap(), read.operation("send").unwrap());
        assert_eq!((reads.latency.count(), reads.bytes, reads.failed), (1, 512, 0));
        assert_eq!((sends.latency.count(), sends.bytes, sends.failed), (3, 60, 1));
        assert_eq!((read.name.as_str(), read.interrupts, read.operations.len()), ("net-a", 4, 2));
        let names: Vec<_> = read.queues.iter().map(|queue| queue.name).collect();
        assert_eq!(names, ["read", "send"]);
    }

    #[test]
    fn wait_for_buffers_counts_once_however_many_turns_it_takes() {
        let counters = DeviceCounters::new(NAMES);
        for (is_waiting, stalls) in [(true, 1), (true, 1), (false, 1), (false, 1), (true, 2)] {
            counters.waits(1, is_waiting);
            assert_eq!(counters.read("x", 0).queue("send").unwrap().stalls, stalls);
        }
        assert_eq!(counters.read("x", 0).queue("read").unwrap().stalls, 0);
    }

    #[test]
    fn refusals_of_one_wait_count_once_and_its_whole_time_counts() {
        let (counters, mut waits, start) =
            (DeviceCounters::new(NAMES), LimitWaits::default(), Instant::now());
        let after = |millis| start + Duration::from_millis(millis);
        waits.refused(start);
        waits.refused(after(3));
        counters.limited(1, &mut waits);
        waits.admitted(after(10));
        waits.admitted(after(20));
        counters.limited(1, &mut waits);
        let queue = *counters.read("x", 0).queue("send").unwrap();
        assert_eq!((queue.limit_waits, queue.limit_waited), (1, Duration::from_millis(10)));
    }
}
