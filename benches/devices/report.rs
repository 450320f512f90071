//! Results as tables.

use std::process::Command;
use std::time::Duration;

use volt_benches::stats::{Times, ratio};
use volt_benches::table::Table;
use volt_benches::{command_line, host};

use crate::counters::Counts;
use crate::options::Options;
use crate::workload::{STEP, Sample, Workload};

/// All samples of one workload: of volt-vmm, and of what it is compared with.
pub struct Row {
    pub workload: Workload,
    pub volt: Vec<Sample>,
    pub other: Vec<Sample>,
}

/// Prints the circumstances.
pub fn print_heading(options: &Options, load: f64) {
    let kvm = volt_vmm::internal::host::kvm_module().unwrap_or("unknown");
    let given = command_line::given();
    let command = format!("cargo bench --locked -p volt-benches --bench devices -- {given}");
    let qemu = Command::new("qemu-system-x86_64").arg("--version").output();
    let qemu = qemu.map(|output| String::from_utf8_lossy(&output.stdout).lines().next().map(str::to_owned));
    println!(
        "{}, {} CPUs; Linux {}; KVM module {kvm}; {}; load average at the start {load:.1}; \
         {} runs of {} ms each.\n\n```sh\n{}\n```\n",
        host::cpu(),
        host::cpus(),
        host::kernel(),
        qemu.ok().flatten().unwrap_or_default(),
        options.rounds,
        options.ms,
        command.trim_end_matches([' ', '-']),
    );
}

/// How fast both are. Above 1, volt-vmm is better.
pub fn print_speed(title: &str, other: &str, rows: &[Row]) {
    let better = format!("volt-vmm / {other}, p50");
    let mut table = Table::new(&[title, "unit", "volt-vmm", other, &better, "best"]);
    for Row { workload, volt, other } in rows {
        let (volt, other) = (costs(workload, volt), costs(workload, other));
        table.row([
            workload.name(),
            workload.unit().to_owned(),
            rate(workload, volt.percentile(50)),
            rate(workload, other.percentile(50)),
            format!("{:.2}", ratio(other.percentile(50), volt.percentile(50))),
            format!("{:.2}", ratio(other.min(), volt.min())),
        ]);
    }
    println!("{table}");
}

/// Time of single operations: the median of each run's percentiles.
pub fn print_times(title: &str, rows: &[Row]) {
    let columns = [title, "volt-vmm p50", "p90", "p99", "QEMU p50", "p90", "p99"];
    let mut table = Table::new(&columns);
    for Row { workload, volt, other } in rows.iter().filter(|row| row.workload.has_operations()) {
        let cells = |samples: &[Sample]| {
            (0..3).map(|at| median(samples, |sample| sample.measured.each[at])).collect::<Vec<_>>()
        };
        let times = cells(volt).into_iter().chain(cells(other));
        let microseconds = times.map(|time| format!("{:.0}", time.as_secs_f64() * 1e6));
        table.row([workload.name()].into_iter().chain(microseconds));
    }
    println!("{table}");
}

/// Cost for the host.
pub fn print_counts(title: &str, rows: &[Row]) {
    let columns = [title, "exits", "to volt-vmm", "switches", "exits, QEMU", "to QEMU", "switches"];
    let mut table = Table::new(&columns);
    for Row { workload, volt, other } in rows {
        let cells = |samples: &[Sample]| {
            let per = |of: fn(&Counts) -> Option<u64>| {
                let each = samples.iter().filter_map(|sample| {
                    Some(of(&sample.counts)? as f64 / workload.operations(&sample.measured))
                });
                let (count, sum) = each.fold((0, 0.0), |(count, sum), each| (count + 1, sum + each));
                if count == 0 { "?".to_owned() } else { format!("{:.2}", sum / f64::from(count)) }
            };
            [per(|counts| counts.exits), per(|counts| counts.to_vmm), per(|counts| counts.switches)]
        };
        table.row([workload.name()].into_iter().chain(cells(volt)).chain(cells(other)));
    }
    println!("{table}");
}

/// Cost of one operation in each run.
fn costs(workload: &Workload, samples: &[Sample]) -> Times {
    let mut costs = Times::default();
    for Sample { measured, .. } in samples {
        costs.add(measured.took.div_f64(workload.operations(measured).max(1.0)));
    }
    costs
}

fn rate(workload: &Workload, cost: Duration) -> String {
    let operations = 1.0 / cost.as_secs_f64();
    match workload.unit() {
        "MiB/s" => format!("{:.1}", operations * STEP / f64::from(1 << 20)),
        _ => format!("{operations:.0}"),
    }
}

fn median(samples: &[Sample], of: impl Fn(&Sample) -> Duration) -> Duration {
    let mut times = Times::default();
    samples.iter().for_each(|sample| times.add(of(sample)));
    times.percentile(50)
}
