//! `volt-vmm ps`: lists VMs with names.

use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::cli::Outcome;
use crate::client;
use crate::output::print::print;
use crate::output::table::Table;
use crate::process::exit::Status;
use crate::run_dir::listing;
use crate::run_dir::outcome::EndOfVm;
use crate::run_dir::record::Record;
use crate::run_dir::root::RunRoot;
use crate::run_dir::vm_dir::VmDir;

/// Longest wait for the answers of all VMs. One that does not answer is unresponsive.
const ANSWERS: Duration = Duration::from_secs(1);

/// List VMs with names
///
/// Example: volt-vmm ps --all --filter state=ended
#[derive(Debug, Args)]
pub(crate) struct Ps {
    /// List ended VMs too
    #[arg(short, long)]
    all: bool,

    /// List only VMs with this value: name=TEXT (a part of the name), id=DIGITS (its beginning) or
    /// state=STATE (starting, running, paused, unresponsive, ended). Repeatable; all must hold
    #[arg(short, long = "filter", value_name = "KEY=VALUE")]
    filters: Vec<Filter>,

    /// Print names only
    #[arg(short, long)]
    quiet: bool,

    /// Print as a table or as JSON
    #[arg(long, value_name = "table|json", default_value = "table", hide_possible_values = true)]
    format: Format,

    /// Print as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Table,
    Json,
}

/// State of a VM with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum VmState {
    Starting,
    Running,
    Paused,
    /// Its API does not answer.
    Unresponsive,
    Ended,
}

impl VmState {
    /// The state in a table.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Unresponsive => "unresponsive",
            Self::Ended => "ended",
        }
    }
}

/// A condition of `--filter`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Filter {
    Name(String),
    Id(String),
    State(VmState),
}

impl FromStr for Filter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some(("name", part)) => Ok(Self::Name(part.to_owned())),
            Some(("id", start)) => Ok(Self::Id(start.to_owned())),
            Some(("state", state)) => VmState::from_str(state, false).map(Self::State).map_err(|_| {
                format!("{state:?}: it is one of starting, running, paused, unresponsive, ended")
            }),
            _ => Err("write name=TEXT, id=DIGITS or state=STATE".to_owned()),
        }
    }
}

impl Filter {
    fn holds(&self, row: &Row) -> bool {
        match self {
            Self::Name(part) => row.record.name.as_str().contains(part.as_str()),
            Self::Id(start) => row.record.id.starts_with(start.as_str()),
            Self::State(state) => row.state == *state,
        }
    }
}

/// A VM in the list.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    record: Record,
    state: VmState,
    vcpus: Option<u8>,
    memory_mib: Option<u64>,
    end: Option<EndOfVm>,
}

impl Ps {
    pub(crate) fn execute(self) -> Outcome {
        let vms = match RunRoot::existing()? {
            Some(root) => listing::all(&root)?,
            None => Vec::new(),
        };
        let wants_ended = self.all || self.filters.contains(&Filter::State(VmState::Ended));
        let rows = rows(vms).into_iter();
        let mut rows: Vec<_> =
            rows.filter(|row| self.filters.iter().all(|filter| filter.holds(row))).collect();
        rows.retain(|row| wants_ended || row.state != VmState::Ended);
        let is_json = self.json || self.format == Format::Json;
        print(&rows, is_json, |rows| if self.quiet { names(rows) } else { table(rows) })?;
        Ok(Status::Success)
    }
}

/// The answer to `GET /`.
#[derive(Debug, Deserialize)]
struct Instance {
    state: String,
}

/// The states and ends of VMs, in their order. All are asked at once.
pub(crate) fn states(vms: &[&VmDir]) -> Vec<(VmState, Option<EndOfVm>)> {
    let ends: Vec<_> = vms.iter().map(|vm| vm.end()).collect();
    let alive = vms.iter().zip(&ends).filter(|(_, end)| end.is_none());
    let sockets: Vec<&Path> = alive.map(|(vm, _)| vm.record.api_socket.as_path()).collect();
    let mut answers = client::get_all::<Instance>(&sockets, "/", ANSWERS).into_iter();
    let mut state_of =
        |vm: &VmDir| match answers.next().flatten().as_ref().map(|answer| answer.state.as_str()) {
            Some("Running") => VmState::Running,
            Some("Paused") => VmState::Paused,
            _ if vm.config().is_none() => VmState::Starting,
            // Between the end of the guest and that of its process.
            Some(_) => VmState::Running,
            None => VmState::Unresponsive,
        };
    let of = |(vm, end): (&&VmDir, Option<EndOfVm>)| match end {
        Some(end) => (VmState::Ended, Some(end)),
        None => (state_of(vm), None),
    };
    let mut states: Vec<_> = vms.iter().zip(ends).map(of).collect();
    // A VM that has ended meanwhile did not answer.
    for (vm, (state, end)) in vms.iter().zip(&mut states) {
        if *state == VmState::Unresponsive
            && let Some(found) = vm.end()
        {
            (*state, *end) = (VmState::Ended, Some(found));
        }
    }
    states
}

fn rows(vms: Vec<VmDir>) -> Vec<Row> {
    let states = states(&vms.iter().collect::<Vec<_>>());
    let row = |(vm, (state, end)): (VmDir, _)| {
        let config = vm.config();
        let shape = config.map(|config| (config.vcpus, config.memory_mib));
        let (vcpus, memory_mib) = shape.unzip();
        Row { record: vm.record.without_variables(), state, vcpus, memory_mib, end }
    };
    vms.into_iter().zip(states).map(row).collect()
}

fn names(rows: &[Row]) -> String {
    rows.iter().map(|row| format!("{}\n", row.record.name)).collect()
}

fn table(rows: &Vec<Row>) -> String {
    let mut table = Table::new(["NAME", "ID", "STATE", "AGE", "VCPUS", "MEMORY", "FROM", "END"]);
    for row in rows {
        let number = |number: Option<String>| number.unwrap_or_else(|| "-".to_owned());
        table.row([
            row.record.name.to_string(),
            row.record.id.clone(),
            row.state.text().to_owned(),
            age(&row.record.created, SystemTime::now()),
            number(row.vcpus.map(|vcpus| vcpus.to_string())),
            number(row.memory_mib.map(|mib| format!("{mib} MiB"))),
            row.record.origin.text(),
            row.end.as_ref().map(|end| format!("{} ({})", end.status, end.message)).unwrap_or_default(),
        ]);
    }
    table.text()
}

/// The time since `since`, in its largest unit.
fn age(since: &str, now: SystemTime) -> String {
    let since = humantime::parse_rfc3339(since).ok();
    let Some(age) = since.and_then(|since| now.duration_since(since).ok()) else { return "-".to_owned() };
    let seconds = age.as_secs();
    let units = [(86_400, "d"), (3600, "h"), (60, "min"), (1, "s")];
    let (length, unit) = units.into_iter().find(|(length, _)| seconds >= *length).unwrap_or((1, "s"));
    format!("{} {unit}", seconds / length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_names_its_key() {
        assert_eq!("name=we".parse(), Ok(Filter::Name("we".to_owned())));
        assert_eq!("state=paused".parse(), Ok(Filter::State(VmState::Paused)));
        for (text, words) in
            [("state=lost", "\"lost\": it is one of"), ("web", "write name="), ("a=b", "write")]
        {
            assert!(text.parse::<Filter>().unwrap_err().contains(words), "{text}");
        }
    }

    #[test]
    fn age_has_its_largest_unit() {
        let now = humantime::parse_rfc3339("2026-11-27T12:00:00Z").unwrap();
        for (since, text) in [
            ("2026-11-27T11:59:57Z", "3 s"),
            ("2026-11-27T11:58:00Z", "2 min"),
            ("2026-11-27T07:59:59Z", "4 h"),
            ("2026-11-20T11:59:59Z", "7 d"),
            ("2026-11-27T12:00:00Z", "0 s"),
            ("2027-01-01T00:00:00Z", "-"),
            ("soon", "-"),
        ] {
            assert_eq!(age(since, now), text, "{since}");
        }
    }
}
