//! Tasks: the workloads of one process on one file system.

use std::fs::{self, File};
use std::path::Path;
use std::time::Instant;

use volt_benches::{OrSay, Result};

use crate::files::Found;
use crate::measured::Done;
use crate::plan::{ARCHIVE, Plan, null};
use crate::{reading, writing};

/// The word by which this program executes one task.
pub const ORDER: &str = "in-guest-task";
/// The directory of tasks that write.
const DIRECTORY: &str = "/bench-work";

/// Tasks that read, each with the name of its workload.
pub const READING: [(&str, &str); 7] = [
    ("scan", "metadata scan"),
    ("python", "read of all .py files"),
    ("deep", "deep traversal"),
    ("concurrent", "concurrent reads"),
    ("random", "random reads"),
    ("sequential", "sequential read"),
    ("programs", "exec of 100 programs"),
];
/// Tasks that write.
pub const WRITING: [&str; 4] = ["files", "small", "large", "untar"];

/// Results of a task.
#[derive(Debug, Default)]
pub struct Timing {
    is_warm: bool,
    done: Vec<Done>,
}

impl Timing {
    /// Times a workload that returns what it found.
    ///
    /// # Errors
    /// As the workload.
    pub fn time(&mut self, workload: &str, act: impl FnOnce() -> Result<Found>) -> Result<()> {
        let start = Instant::now();
        let found = act()?;
        self.add(workload, start, Instant::now(), found);
        Ok(())
    }

    /// Times a workload. `check` then returns what is there.
    ///
    /// # Errors
    /// As both.
    pub fn time_checked(
        &mut self,
        workload: &str,
        act: impl FnOnce() -> Result<()>,
        check: impl FnOnce() -> Result<Found>,
    ) -> Result<()> {
        let start = Instant::now();
        act()?;
        let end = Instant::now();
        self.add(workload, start, end, check()?);
        Ok(())
    }

    fn add(&mut self, workload: &str, start: Instant, end: Instant, found: Found) {
        let ns = (end - start).as_nanos() as u64;
        let (workload, is_warm) = (workload.to_owned(), self.is_warm);
        self.done.push(Done { workload, is_warm, ns, count: found.count, sum: found.sum });
    }
}

/// Executes a task below a root, and prints its results.
///
/// # Errors
/// One of its workloads fails.
pub fn run(task: &str, root: &str) -> Result<()> {
    let (plan, null) = (Plan::read()?, null()?);
    let archive = File::open(ARCHIVE).or_say("open the archive")?;
    rustix::process::chroot(root).or_say("change the root")?;
    std::env::set_current_dir("/").or_say("change the root")?;
    let mut timing = Timing::default();
    match READING.iter().find(|(name, _)| *name == task) {
        Some((_, workload)) => {
            for is_warm in [false, true] {
                timing.is_warm = is_warm;
                timing.time(workload, || read(task, &plan, &null))?;
            }
        }
        None => {
            timing.is_warm = true;
            write(task, archive, &mut timing)?;
        }
    }
    for done in timing.done {
        println!("{}", serde_json::to_string(&done).or_say("print a result")?);
    }
    Ok(())
}

fn read(task: &str, plan: &Plan, null: &File) -> Result<Found> {
    match task {
        "scan" => reading::scan(plan),
        "python" => reading::python(plan),
        "deep" => reading::deep(plan),
        "concurrent" => reading::concurrent(plan),
        "random" => reading::random(plan),
        "sequential" => reading::sequential(plan),
        _ => reading::programs(plan, null),
    }
}

fn write(task: &str, archive: File, timing: &mut Timing) -> Result<()> {
    let directory = Path::new(DIRECTORY);
    fs::create_dir(directory).or_say("make a directory")?;
    writing::sync(directory)?;
    match task {
        "files" => writing::files(directory, timing)?,
        "small" => writing::small(directory, timing)?,
        "large" => writing::large(directory, timing)?,
        "untar" => writing::untar(directory, archive, timing)?,
        _ => return Err(format!("there is no task {task}")),
    }
    fs::remove_dir_all(directory).or_say("remove a directory")?;
    writing::sync(Path::new("/"))
}
