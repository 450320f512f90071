//! Rounds of all tasks, in the guest: each in a process of its own, alternately on both file systems.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use volt_benches::{OrSay, Result};

use crate::files::entries;
use crate::measured::{Done, Measured, Place, Requests};
use crate::plan::{NATIVE, Plan};
use crate::tasks::{self, READING, WRITING};

/// The word by which this program runs in the guest.
pub const ORDER: &str = "in-guest-rounds";

/// Runs the rounds, and prints results.
///
/// # Errors
/// A task fails, or finds other files than on the other file system.
pub fn run(count: &str) -> Result<()> {
    let count: usize = count.parse().or_say("read the number of rounds")?;
    eprintln!("looking for files and programs");
    let plan = Plan::make()?;
    eprintln!("copying the image");
    copy(&plan)?;
    let disk = fs::metadata(NATIVE).or_say("look at the native file system")?.dev();
    let native = format!("{}:{}", rustix::fs::major(disk), rustix::fs::minor(disk));
    for round in 0..=count {
        eprintln!("round {round} of {count}");
        for task in READING.iter().map(|(name, _)| *name).chain(WRITING) {
            eprintln!("  {task}");
            let mut places = [(Place::Image, "/"), (Place::Native, NATIVE)];
            if round % 2 == 1 {
                places.reverse();
            }
            let [first, second] = places.map(|(place, root)| measure(task, place, root, &native));
            let (first, second) = (first?, second?);
            let found =
                |of: &[Measured]| of.iter().map(|one| (one.done.count, one.done.sum)).collect::<Vec<_>>();
            if found(&first) != found(&second) {
                return Err(format!("{task} found other files: {first:?}, {second:?}"));
            }
            // The first round fills the host's caches.
            for measured in first.iter().chain(&second).filter(|_| round > 0) {
                println!("{}", serde_json::to_string(measured).or_say("print a result")?);
            }
        }
    }
    Ok(())
}

/// Copies the image's tree to the native file system.
fn copy(plan: &Plan) -> Result<()> {
    let status = Command::new("cp").args(["-ax", "/.", NATIVE]).status().or_say("run cp")?;
    let [image, native] = ["/", NATIVE].map(|root| entries(Path::new(root), &plan.tops));
    let (image, native) = (image?, native?);
    match status.success() && image == native && image.count > 0 {
        true => Ok(()),
        false => Err(format!("the copy differs: cp {status}, {image:?}, {native:?}")),
    }
}

/// Runs a task with cold caches.
fn measure(task: &str, place: Place, root: &str, native: &str) -> Result<Vec<Measured>> {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3").or_say("drop caches")?;
    let before = Requests::of(place, native)?;
    let output = Command::new("/proc/self/exe").args([tasks::ORDER, task, root]).output();
    let output = output.or_say("run a task")?;
    if !output.status.success() {
        return Err(format!("{task} on {root}: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let requests = Requests::of(place, native)?.since(before);
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let read = |line| {
        let done: Done = serde_json::from_str(line).or_say("read a result")?;
        if done.count == 0 {
            Err(format!("{task} did nothing"))
        } else {
            Ok(Measured { place, requests, done })
        }
    };
    lines.lines().map(read).collect()
}

impl Requests {
    /// Returns those of all disks of a file system.
    fn of(place: Place, native: &str) -> Result<Self> {
        let mut sum = Self::default();
        for entry in fs::read_dir("/sys/dev/block").or_say("list disks")? {
            let path = entry.or_say("list disks")?.path();
            let is_native = path.file_name().is_some_and(|name| name == native);
            let text = fs::read_to_string(path.join("stat")).unwrap_or_default();
            let fields: Vec<u64> = text.split_whitespace().filter_map(|field| field.parse().ok()).collect();
            if is_native == (place == Place::Native) && fields.len() > 15 {
                sum.reads += fields[0];
                sum.kib_read += fields[2] / 2;
                sum.writes += fields[4];
                sum.flushes += fields[15];
            }
        }
        Ok(sum)
    }

    fn since(self, before: Self) -> Self {
        Self {
            reads: self.reads - before.reads,
            writes: self.writes - before.writes,
            flushes: self.flushes - before.flushes,
            kib_read: self.kib_read - before.kib_read,
        }
    }
}
