//! Memory of a restored VMM beyond the pages that its guest touched.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use volt_benches::process::Running;
use volt_benches::table::Table;
use volt_benches::{OrSay, Result};

use crate::subject::Subject;

/// When the process has settled: all that comes up after the guest has come up.
const SETTLED: Duration = Duration::from_millis(200);

/// Makes the command that restores a subject.
pub type Restore<'a> = &'a dyn Fn(&Subject) -> Command;

/// KiB.
struct Resident {
    peak: u64,
    now: u64,
    guest: u64,
    anonymous: u64,
}

/// Measures each contender once for each subject. A contender maps the subject's memory file.
///
/// # Errors
/// It does not run.
pub fn measure(subjects: &[Subject], contenders: &[(&str, Restore<'_>)]) -> Result<Table> {
    let columns =
        ["resident, KiB", "peak beyond the guest", "now beyond the guest", "of it anonymous", "guest"];
    let mut table = Table::new(&columns);
    for subject in subjects {
        for (name, command) in contenders {
            let (running, _) = Running::timed(&mut command(subject))?;
            thread::sleep(SETTLED);
            let Resident { peak, now, guest, anonymous } = look(running.id())?;
            let cells = [peak - guest, now - guest, anonymous, guest].map(|kib| kib.to_string());
            table.row([format!("{name}, {} MiB", subject.mib)].into_iter().chain(cells));
        }
    }
    Ok(table)
}

fn look(process: u32) -> Result<Resident> {
    let read = |name| fs::read_to_string(format!("/proc/{process}/{name}")).or_say("look at a process");
    let (mut guest, mut all, mut anonymous) = (0, 0, 0);
    let mut in_guest = false;
    for line in read("smaps")?.lines() {
        let is_heading = line.split(' ').next().is_some_and(|word| word.contains('-'));
        if is_heading {
            in_guest = line.ends_with("memory.snap");
        }
        if let Some(kib) = kib(line, "Rss:") {
            all += kib;
            guest += if in_guest { kib } else { 0 };
        }
        if let Some(kib) = kib(line, "Anonymous:").filter(|_| !in_guest) {
            anonymous += kib;
        }
    }
    let status = read("status")?;
    let peak = status.lines().find_map(|line| kib(line, "VmHWM:")).unwrap_or(0).max(all);
    Ok(Resident { peak, now: all, guest, anonymous })
}

fn kib(line: &str, field: &str) -> Option<u64> {
    line.strip_prefix(field)?.split_whitespace().next()?.parse().ok()
}
