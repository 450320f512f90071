//! Results as tables.

use std::time::Duration;

use volt_benches::document::Document;
use volt_benches::stats::{Times, micros, milliseconds, ratio};
use volt_benches::table::Table;

use crate::backends::{Backend, MTU_OF_PASST, RULE};
use crate::options::Options;
use crate::targets;
use crate::workload::{Sample, Workload};

/// All samples of one workload with one backend: without the policy, and with it.
pub struct Row {
    pub backend: Backend,
    pub workload: Workload,
    pub samples: [Vec<Sample>; 2],
}

impl Row {
    pub fn new(backend: Backend, workload: Workload) -> Self {
        Self { backend, workload, samples: [Vec::new(), Vec::new()] }
    }

    fn name(&self) -> String {
        format!("{}, {}", self.backend.name(), self.workload.name())
    }

    /// Times that a workload is judged by: of single operations, or of a MiB in each run.
    pub fn times(&self) -> [Times; 2] {
        [0, 1].map(|policy| self.times_of(self.samples[policy].iter()))
    }

    fn times_of<'a>(&self, samples: impl Iterator<Item = &'a Sample>) -> Times {
        match self.workload.is_bulk() {
            true => samples.map(|sample| sample.cost(self.workload)).collect(),
            false => samples.flat_map(|sample| sample.measured.durations.iter().copied()).collect(),
        }
    }

    /// Times without the policy, of every other run and of the rest.
    pub fn halves(&self) -> [Times; 2] {
        let runs = &self.samples[0];
        [0, 1].map(|half| self.times_of(runs.iter().skip(half).step_by(2)))
    }

    /// Processor time of the interface's thread, for an operation or a MiB.
    pub fn spent(&self) -> [Times; 2] {
        [0, 1].map(|policy| self.samples[policy].iter().map(|sample| sample.spent(self.workload)).collect())
    }

    /// Median of the ratios of two runs that follow each other, as a speed with the policy.
    pub fn pairs(&self) -> f64 {
        let [off, on] = &self.samples;
        let cost = |sample: &Sample| sample.cost(self.workload);
        let mut ratios: Vec<_> = off.iter().zip(on).map(|(off, on)| ratio(cost(off), cost(on))).collect();
        ratios.sort_by(f64::total_cmp);
        ratios.get(ratios.len() / 2).copied().unwrap_or(1.0)
    }
}

/// Says all that was measured.
pub fn say(document: &mut Document, options: &Options, rows: &[Row]) {
    document.say(&preface(options));
    document.say(place());
    let judged = |is: fn(Workload) -> bool| {
        rows.iter().filter(move |row| row.backend.has_policy() && is(row.workload)).collect::<Vec<_>>()
    };
    let any = |_: Workload| true;
    if !judged(any).is_empty() {
        document.say(&targets::text(&judged(any)));
        document.say(&format!("## Throughput\n\n{BULK}\n\n{}", bulk(&judged(Workload::is_bulk))));
        let pings = judged(|workload| workload == Workload::Ping);
        let table = latencies("microseconds", &pings, |time| format!("{:.0}", micros(time)));
        document.say(&format!("## Round trips\n\n{PING}\n\n{table}"));
        let connections = judged(|workload| matches!(workload, Workload::Connect | Workload::HttpConnect));
        let table = latencies("milliseconds", &connections, milliseconds);
        document.say(&format!("## First byte of a connection\n\n{CONNECT}\n\n{table}"));
        document.say(&format!("## Processor time of the device\n\n{SPENT}\n\n{}", spent(&judged(any))));
    }
    document.say(&format!("## Backends, without a policy\n\n{BACKENDS}\n\n{}", backends(rows)));
}

const BULK: &str = "One connection moves bytes as fast as it can; port 443, unless it is HTTP. MiB/s; the \
best is that of the fastest run. Pairs: the median of the ratios of two runs that follow each other.";
const PING: &str = "A byte there and back, on one connection.";
const CONNECT: &str = "From the call of connect(2) to the first byte of the answer, beyond a first message \
of TLS of 1.3 KiB, or a request of HTTP.";
const SPENT: &str = "Processor time of the interface's thread in volt-vmm, with its system calls, for a MiB, \
a round trip or a connection, by the kernel's account (schedstat). The policy does its work on this thread. \
Time of the guest, of passt and of the resolver is not in it. Medians of runs, in microseconds. Transfers to \
the guest have a warm-up of a quarter of a run, whose time is counted here, and whose bytes are not.";
const BACKENDS: &str = "The same guest under QEMU microvm, with queues as long as volt-vmm's. MiB/s, \
microseconds of a round trip, and milliseconds to a connection's first byte; connections a second include \
the close.";

fn preface(options: &Options) -> String {
    format!(
        "A Linux guest talks to servers in another network namespace, which is beyond a veth of the host: a \
         policy closes the host's own addresses. The policy is `--default-deny --allow '{RULE}'`. The guest \
         resolves the servers' names in the device. On port 443 it sends a first message of TLS with the \
         name, which is judged, and the server answers with a record; plain bytes follow. On port 80 it \
         sends a request of HTTP, and the device ends the connection where the policy is on. The same bytes \
         go without a policy.\n\nEach backend has one VM, whose policy is set and removed for each run: {} \
         rounds, each with a run of {} ms without and one with the policy of each measurement, which take \
         turns. A VM that is not measured is stopped. *The same twice* compares every other run without a \
         policy with the rest: differences of this size are noise.\n\nPackets have up to 1,500 bytes, and \
         behind passt {}, as in VMs of images. QEMU's tap is without vhost.\n",
        options.rounds, options.ms, MTU_OF_PASST
    )
}

/// Limits of measurements on this host.
fn place() -> &'static str {
    if std::env::var_os("VOLT_LAB").is_some() {
        "The guest, the VMM, the host's kernel and the servers share one emulated processor, so a row counts \
         the work of all of them. On hardware they work at the same time, and the slowest one decides. The \
         emulator copies 8 or 16 bytes by an instruction where hardware copies 32 and more: copies weigh \
         more here. Exits of the guest and thread switches do, too. Rows to the guest behind passt vary \
         most, under QEMU as well.\n"
    } else if volt_vmm::internal::host::kvm_module() == Some("kvm_pvm") {
        "The KVM of this host is a software one. It emulates the guest's kernel, instruction by \
         instruction. The guest's TCP is therefore the limit of each row, and hides all else. The processor \
         time of the device is real. [In the lab](benchmarks-network-lab.md), guest and host are equally \
         fast.\n"
    } else {
        ""
    }
}

fn bulk(rows: &[&Row]) -> Table {
    let columns = [
        "MiB/s",
        "without, p50",
        "best",
        "with, p50",
        "best",
        "with / without, p50",
        "best",
        "pairs",
        "the same twice",
    ];
    let mut table = Table::new(&columns);
    for row in rows {
        let ([off, on], [some, rest]) = (row.times(), row.halves());
        let cells = [&off, &on].into_iter().flat_map(|times| [50, 0].map(|at| speed(times.percentile(at))));
        let ratios = [
            ratio(off.percentile(50), on.percentile(50)),
            ratio(off.min(), on.min()),
            row.pairs(),
            ratio(some.percentile(50), rest.percentile(50)),
        ];
        let ratios = ratios.map(|ratio| format!("{ratio:.3}"));
        table.row([row.name()].into_iter().chain(cells).chain(ratios));
    }
    table
}

fn latencies(title: &str, rows: &[&Row], text: impl Fn(Duration) -> String) -> Table {
    let columns = [
        title,
        "without, min",
        "p50",
        "p90",
        "p99",
        "with, min",
        "p50",
        "p90",
        "p99",
        "min more",
        "p50 more",
        "the same twice, p50",
    ];
    let mut table = Table::new(&columns);
    let less = |a: Duration, b: Duration| match a.checked_sub(b) {
        Some(more) => text(more),
        None => format!("-{}", text(b - a)),
    };
    for row in rows {
        let ([off, on], [some, rest]) = (row.times(), row.halves());
        let cells = [&off, &on].into_iter().flat_map(|times| [0, 50, 90, 99].map(|at| times.percentile(at)));
        let cells: Vec<_> = cells.map(&text).collect();
        let more = [0, 50].map(|at| less(on.percentile(at), off.percentile(at)));
        let twice = less(some.percentile(50), rest.percentile(50));
        table.row([row.name()].into_iter().chain(cells).chain(more).chain([twice]));
    }
    table
}

fn spent(rows: &[&Row]) -> Table {
    let mut table = Table::new(&["microseconds", "of", "without", "with", "more"]);
    for row in rows {
        let [off, on] = row.spent().map(|times| micros(times.percentile(50)));
        let of = match row.workload {
            workload if workload.is_bulk() => "a MiB",
            Workload::Ping => "a round trip",
            _ => "a connection",
        };
        let numbers = [off, on, on - off].map(|number| format!("{number:.1}"));
        table.row([row.name(), of.to_owned()].into_iter().chain(numbers));
    }
    table
}

fn backends(rows: &[Row]) -> Table {
    let columns = [
        "backend",
        "MiB/s from the guest",
        "to it",
        "round trip, p50",
        "p90",
        "p99",
        "first byte, p50",
        "p90",
        "p99",
        "connections/s",
    ];
    let mut table = Table::new(&columns);
    for backend in Backend::ALL {
        let of = |workload| {
            let row = rows.iter().find(|row| (row.backend, row.workload) == (backend, workload))?;
            Some((
                row.times()[0].clone(),
                row.samples[0].iter().map(|sample| sample.cost(workload)).collect(),
            ))
        };
        let all = [Workload::Send, Workload::Receive, Workload::Ping, Workload::Connect].map(of);
        let [Some((send, _)), Some((receive, _)), Some((ping, _)), Some((connect, whole))] = all else {
            continue;
        };
        let whole: Times = whole;
        let mut cells = vec![backend.name().to_owned()];
        cells.extend([&send, &receive].map(|times| speed(times.percentile(50))));
        cells.extend([50, 90, 99].map(|at| format!("{:.0}", micros(ping.percentile(at)))));
        cells.extend([50, 90, 99].map(|at| milliseconds(connect.percentile(at))));
        cells.push(format!("{:.1}", 1.0 / whole.percentile(50).as_secs_f64()));
        table.row(cells);
    }
    table
}

/// The speed of a MiB that takes so long.
fn speed(time: Duration) -> String {
    let speed = 1.0 / time.as_secs_f64();
    if speed < 100.0 { format!("{speed:.2}") } else { format!("{speed:.0}") }
}
