//! Measures memory, descriptors and threads of the guests that live through the whole soak, processes, and
//! files. No quantity may grow.

use std::fmt;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use volt_tests::guest::resident_kib;
use volt_tests::scratch::list;

use crate::herd::Herd;

/// Growth that is none: a thread or descriptor that an act has at the moment, and pages that a guest happens
/// to have written.
const SLACK: u64 = 4;
const SLACK_KIB: u64 = 6 << 10;

/// The measurements, one a minute.
#[derive(Debug, Default)]
pub struct Watch(Vec<Series>);

/// One quantity over time.
#[derive(Debug)]
struct Series {
    name: String,
    slack: u64,
    values: Vec<u64>,
}

impl Watch {
    /// Measures all quantities.
    pub fn measure(&mut self, herd: &mut Herd) {
        let mut found = Vec::new();
        for member in herd.members.iter().filter(|member| member.is_elder) {
            let (pid, kind) = (member.guest.pid(), member.kind);
            let of = |name: &str| count(&format!("/proc/{pid}/{name}"));
            found.push((format!("{kind:?} {pid}: resident KiB"), SLACK_KIB, resident_kib(pid)));
            found.push((format!("{kind:?} {pid}: descriptors"), SLACK, of("fd")));
            found.push((format!("{kind:?} {pid}: threads"), SLACK, of("task")));
        }
        // Layers of restored clones go with the clones, but for the directory of each guest.
        let files = herd.members.iter().map(|member| files_in(member.scratch.directory())).sum::<u64>();
        found.push(("files of guests".to_owned(), 4 * SLACK, files));
        found.push(("files of acts".to_owned(), SLACK, files_in(herd.scratch.directory())));
        found.push(("processes of volt-vmm".to_owned(), SLACK, processes(herd)));
        found.push(("KiB of the soak".to_owned(), u64::MAX, resident_kib(std::process::id())));
        if self.0.is_empty() {
            let new = |(name, slack, _): &(String, u64, u64)| Series {
                name: name.clone(),
                slack: *slack,
                values: vec![],
            };
            self.0 = found.iter().map(new).collect();
        }
        for (series, (.., value)) in self.0.iter_mut().zip(found) {
            series.values.push(value);
        }
    }

    /// Names the quantities that have grown: the median of the last quarter is beyond that of the first half
    /// by a tenth and the slack.
    pub fn grown(&self) -> Vec<String> {
        let has_grown = |series: &&Series| {
            let (first, last) = series.ends();
            last > (first + first / 10).saturating_add(series.slack)
        };
        self.0.iter().filter(has_grown).map(|series| format!("{} {:?}", series.name, series.values)).collect()
    }

    /// Returns a table of all quantities.
    pub fn table(&self) -> String {
        let mut table =
            "quantity                              first half   last quarter    most\n".to_owned();
        for series in &self.0 {
            let (first, last) = series.ends();
            let most = series.values.iter().max().copied().unwrap_or(0);
            let _ = writeln!(table, "{:<36} {first:>11} {last:>14} {most:>7}", series.name);
        }
        table
    }
}

impl Series {
    /// The medians of the first half and of the last quarter.
    fn ends(&self) -> (u64, u64) {
        let count = self.values.len();
        (median(&self.values[..count.div_ceil(2)]), median(&self.values[count - count.div_ceil(4)..]))
    }
}

impl fmt::Display for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum = |kind: &str| {
            let all = self.0.iter().filter(|series| series.name.contains(kind));
            all.filter_map(|series| series.values.last()).sum::<u64>()
        };
        write!(
            f,
            "{} KiB, {} descriptors, {} threads, {} files, {} processes",
            sum("resident KiB"),
            sum("descriptors"),
            sum("threads"),
            sum("files"),
            sum("processes")
        )
    }
}

fn median(values: &[u64]) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or(0)
}

fn count(directory: &str) -> u64 {
    fs::read_dir(directory).map_or(0, Iterator::count) as u64
}

fn files_in(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let of = |entry: fs::DirEntry| 1 + if entry.path().is_dir() { files_in(&entry.path()) } else { 0 };
    entries.map(of).sum()
}

/// Counts processes whose command line names a directory of the herd.
fn processes(herd: &Herd) -> u64 {
    let own = herd.members.iter().map(|member| &member.scratch).chain([&herd.scratch]);
    let own: Vec<String> = own.map(|scratch| scratch.directory().display().to_string()).collect();
    let belongs = |id: &String| {
        let command = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command);
        own.iter().any(|directory| command.contains(directory.as_str()))
    };
    list("/proc".as_ref()).iter().filter(|id| id.parse::<u32>().is_ok() && belongs(id)).count() as u64
}
