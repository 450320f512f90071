//! Phases of a fork and of a warm start, by the logs of the VMs.

use std::time::{Duration, SystemTime};

use volt_benches::scratch::Scratch;
use volt_benches::stats::{Times, percentiles};
use volt_benches::table::Table;
use volt_benches::{OrSay, Result};

use crate::vms::{CHILD, LOGGED, Vms};

const ABOUT: &str = "Phases by the logs of the VMs. The first output of a fork is one of the agent's own \
client here, without a process for `volt-vmm exec`.";

/// A record of a log, and the phase that it ends.
pub struct Mark {
    /// The VM that writes it. `None`: there is one only.
    vm: Option<&'static str>,
    record: &'static str,
    phase: &'static str,
}

const fn mark(vm: &'static str, record: &'static str, phase: &'static str) -> Mark {
    Mark { vm: Some(vm), record, phase }
}

const fn mark_of_run(record: &'static str, phase: &'static str) -> Mark {
    Mark { vm: None, record, phase }
}

const OF_RUN: [Mark; 3] = [
    mark_of_run("the guest runs", "processes, and the restore up to the guest's first instruction"),
    mark_of_run("the agent answers", "the guest's agent answers"),
    mark_of_run("the main process may start", "volumes, entropy, time and names; the thaw"),
];
const LAST_OF_RUN: &str = "the command starts, and writes";
const OF_FORK: [Mark; 6] = [
    mark(LOGGED, "the workload is frozen", "client of `fork`; the parent's agent freezes the workload"),
    mark(LOGGED, "the VM is captured", "capture; the child's process and empty VM, beside it"),
    mark(CHILD, "the child runs", "restore in the child, up to its first instruction"),
    mark(CHILD, "the agent answers", "the child's agent answers"),
    mark(CHILD, "the guest is awake", "entropy, time and names"),
    mark(CHILD, "the workload runs", "the thaw"),
];
/// Phases that a client of the child sees.
const LAST_OF_FORK: [&str; 3] = ["end of the client of `fork`", "the process starts", "its first output"];

/// Times of the phases of several runs.
pub struct Phases {
    names: Vec<&'static str>,
    times: Vec<Vec<Duration>>,
}

impl Phases {
    pub fn new(marks: &[Mark], last: &[&'static str]) -> Self {
        let names: Vec<_> = marks.iter().map(|mark| mark.phase).chain(last.iter().copied()).collect();
        let times = vec![Vec::new(); names.len()];
        Self { names, times }
    }

    /// Adds a run, by the ends of its phases since the call.
    pub fn add(&mut self, ends: impl IntoIterator<Item = Duration>) {
        let mut last = Duration::ZERO;
        for (end, times) in ends.into_iter().zip(&mut self.times) {
            times.push(end.saturating_sub(last));
            last = last.max(end);
        }
    }

    pub fn table(self, of: &str) -> Table {
        let mut table = Table::new(&[&format!("phase of {of}, ms"), "min", "p50", "p90", "p99"]);
        for (name, times) in self.names.into_iter().zip(self.times) {
            let times = times.into_iter().collect::<Times>();
            table.row([name.to_owned()].into_iter().chain(percentiles(&times)));
        }
        table
    }
}

/// The tables of phases, from so many runs.
pub fn of(vms: &Vms, scratch: &Scratch, runs: usize) -> Result<String> {
    let log = scratch.path("log");
    let mut of_run = Phases::new(&OF_RUN, &[LAST_OF_RUN]);
    let mut of_fork = Phases::new(&OF_FORK, &LAST_OF_FORK);
    for _ in 0..runs {
        let (called, took, text) = vms.run_with_log(&log)?;
        of_run.add(ends(&OF_RUN, &text, called)?.into_iter().chain([took]));
    }
    vms.start_logged(&log)?;
    // The first child leaves the working set of later ones.
    vms.fork_with_log(&log)?;
    for _ in 0..runs {
        let (called, last, text) = vms.fork_with_log(&log)?;
        of_fork.add(ends(&OF_FORK, &text, called)?.into_iter().chain(last));
    }
    let (of_fork, of_run) =
        (of_fork.table("a fork and a command in the child"), of_run.table("a warm `run`"));
    Ok(format!("{ABOUT}\n\n{of_fork}\n{of_run}"))
}

/// The ends of the phases since the call.
fn ends(marks: &[Mark], log: &str, called: SystemTime) -> Result<Vec<Duration>> {
    marks.iter().map(|mark| time_of(mark, log, called)).collect()
}

/// The time of a record since the call.
fn time_of(mark: &Mark, log: &str, called: SystemTime) -> Result<Duration> {
    let vm = mark.vm.map_or_else(String::new, |vm| format!(" [{vm}] "));
    let line = log.lines().find(|line| line.contains(&vm) && line.contains(mark.record));
    let line = line.ok_or_else(|| format!("{:?} is not in the log: {log}", mark.record))?;
    let time = line.split(' ').next().unwrap_or_default();
    let time = humantime::parse_rfc3339(time).or_say("read a time of a log")?;
    Ok(time.duration_since(called).unwrap_or_default())
}
