//! Phases of a warm start, by the log of its VM.

use std::time::{Duration, SystemTime};

use volt_benches::scratch::Scratch;
use volt_benches::stats::{Times, percentiles};
use volt_benches::table::Table;
use volt_benches::{OrSay, Result};

use crate::vms::Vms;

/// Records of the log, and the phases that they end.
const MARKS: [(&str, &str); 3] = [
    ("the guest runs", "processes, and the restore up to the guest's first instruction"),
    ("the agent answers", "the guest's agent answers"),
    ("the guest is awake", "volumes, entropy, time and names; the thaw"),
];
const LAST: &str = "the command starts, and writes";

/// The table of phases, from so many runs.
pub fn of(vms: &Vms, scratch: &Scratch, runs: usize) -> Result<String> {
    let log = scratch.path("log");
    let mut phases: [Vec<Duration>; MARKS.len() + 1] = Default::default();
    for _ in 0..runs {
        let (called, took, text) = vms.run_with_log(&log)?;
        let mut last = Duration::ZERO;
        for ((mark, _), phase) in MARKS.iter().zip(&mut phases) {
            let at = time_of(mark, &text, called)?;
            phase.push(at.saturating_sub(last));
            last = at;
        }
        phases[MARKS.len()].push(took.saturating_sub(last));
    }
    let mut table = Table::new(&["phase of a warm `run`, ms", "min", "p50", "p90", "p99"]);
    let names = MARKS.iter().map(|(_, name)| *name).chain([LAST]);
    for (name, times) in names.zip(phases) {
        let times = times.into_iter().collect::<Times>();
        table.row([name.to_owned()].into_iter().chain(percentiles(&times)));
    }
    Ok(table.to_string())
}

/// The time of a record since the call.
fn time_of(mark: &str, log: &str, called: SystemTime) -> Result<Duration> {
    let line = log
        .lines()
        .find(|line| line.contains(mark))
        .ok_or_else(|| format!("{mark:?} is not in the log: {log}"))?;
    let time = line.split(' ').next().unwrap_or_default();
    let time = humantime::parse_rfc3339(time).or_say("read a time of a log")?;
    Ok(time.duration_since(called).unwrap_or_default())
}
