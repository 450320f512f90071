//! Freezes and thaws the workload, by the freezer of control groups of version 2.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use volt_job::quiet::Frozen;

use super::groups::{ROOT, of_workload};
use crate::kernel_file;

/// Time between two looks whether all is frozen.
const STEP: Duration = Duration::from_micros(500);

/// Freezes the workload, and waits until it stands still.
///
/// # Errors
/// A process does not freeze in time; the error names it. The workload then runs.
pub fn freeze(patience: Duration) -> Result<Frozen, String> {
    let frozen = see_frozen(patience)?;
    // An init of the image runs on, and may have made others meanwhile.
    let groups = of_workload();
    let late = groups.iter().find(|group| !frozen.frozen.contains(&name(group)));
    let Some(late) = late else { return Ok(frozen) };
    let problem = stuck(late).unwrap_or_else(|| format!("the control group {} does not freeze", name(late)));
    let problem = format!("{problem} within {} ms", patience.as_millis());
    Err(match thaw() {
        Ok(()) => problem,
        Err(error) => format!("{problem}; {error}"),
    })
}

/// Freezes the workload, and returns the groups that stand still after at most this time.
///
/// # Errors
/// The kernel refuses. The workload then runs.
pub fn see_frozen(patience: Duration) -> Result<Frozen, String> {
    let groups = of_workload();
    if groups.is_empty() {
        return Err(format!("no control groups of a workload in {ROOT}"));
    }
    if let Some(error) = set(&groups, "1").err() {
        let _ = thaw();
        return Err(format!("cannot freeze {error}"));
    }
    let end = Instant::now() + patience;
    loop {
        let frozen: Vec<_> = groups.iter().filter(|group| is_frozen(group)).collect();
        if frozen.len() == groups.len() || Instant::now() >= end {
            return Ok(Frozen { frozen: frozen.into_iter().map(|group| name(group)).collect() });
        }
        sleep(STEP);
    }
}

/// Thaws the workload.
///
/// # Errors
/// The kernel refuses.
pub fn thaw() -> Result<(), String> {
    set(&of_workload(), "0").map_err(|error| format!("cannot thaw {error}"))
}

/// Writes to the freezer of each group, and returns the first failure. A group that is gone needs nothing.
fn set(groups: &[PathBuf], state: &str) -> Result<(), String> {
    let mut first = Ok(());
    for group in groups {
        match kernel_file::write(group.join("cgroup.freeze"), state) {
            Err(error) if !is_gone(&error) => first = first.and(Err(format!("{}: {error}", name(group)))),
            _ => {}
        }
    }
    first
}

/// Tells whether a group has been removed.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}

/// Tells whether all processes of a group stand still. It holds for a group that is gone.
fn is_frozen(group: &Path) -> bool {
    match kernel_file::read(group.join("cgroup.events")) {
        Ok(events) => events.lines().any(|line| line == "frozen 1"),
        Err(error) => is_gone(&error),
    }
}

/// The name of a group, below the root.
fn name(group: &Path) -> String {
    group.strip_prefix(ROOT).unwrap_or(group).display().to_string()
}

/// Names the process of a group that does not stand still: one in an uninterruptible sleep, else any.
fn stuck(group: &Path) -> Option<String> {
    let processes = processes(group);
    let state = |process: &str| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The name before it is in parentheses, and may have any.
        stat.rsplit_once(") ")?.1.chars().next()
    };
    let found = processes.iter().find(|process| state(process) == Some('D')).or(processes.first())?;
    let called = fs::read_to_string(format!("/proc/{found}/comm")).unwrap_or_default();
    let state = state(found).map(|state| format!(" in state {state}")).unwrap_or_default();
    Some(format!("process {found} ({}){state} does not freeze", called.trim_end()))
}

/// Lists the processes of a group and of those below it.
fn processes(group: &Path) -> Vec<String> {
    let own = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let mut found: Vec<_> = own.lines().map(str::to_owned).collect();
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(processes(&entry.path()));
        }
    }
    found
}
