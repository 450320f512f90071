//! Tables of the workloads.

use std::time::Duration;

use volt_benches::Result;
use volt_benches::document::Document;
use volt_benches::stats::{Times, geometric_mean, milliseconds, ratio};
use volt_benches::table::Table;

use crate::measured::{Measured, Place, Requests};

const ABOUT: &str = "One VM of the image runs each workload on its root file system (overlayfs over EROFS \
and ext4) and on a volume (ext4) with a copy of the image's files, in turn. Both ext4 \
file systems have 10 GiB. Each execution is a process of its own with the file system \
as its root; times are of the guest's monotonic clock. The guest's caches are dropped \
before each process; the host's page cache has all files. Each execution returns a \
count and a checksum of what it found, and both file systems must give the same. \
*Requests* are those to the disks in the whole process: reads, writes and flushes, in \
the median.";
const WARM: &str = "The same workloads once more, in the same process: the guest's page cache has the files.";
const TARGET: &str = "The targets are a geometric mean of at most 1.1 and no ratio over 2.";

/// Writes both tables.
///
/// # Errors
/// A workload lacks results.
pub fn workloads(document: &mut Document, all: &[Measured]) -> Result<()> {
    let names = names(all);
    let reads = |name: &String| all.iter().any(|one| one.done.workload == *name && !one.done.is_warm);
    let fourteen = table(all, &names, |name| !reads(name))?;
    document.say(&format!("## Fourteen workloads\n\n{ABOUT}\n\n{fourteen}\n{TARGET}\n"));
    let again: Vec<_> = names.iter().filter(|name| reads(name)).cloned().collect();
    document.say(&format!("## With warm caches\n\n{WARM}\n\n{}", table(all, &again, |_| true)?));
    Ok(())
}

/// Names in the order of their execution.
fn names(all: &[Measured]) -> Vec<String> {
    let mut names = Vec::new();
    for measured in all {
        if !names.contains(&measured.done.workload) {
            names.push(measured.done.workload.clone());
        }
    }
    names
}

/// A table of these workloads, and a sentence with the geometric means of its ratios.
fn table(all: &[Measured], names: &[String], is_warm: impl Fn(&String) -> bool) -> Result<String> {
    let columns = [
        "",
        "count",
        "image, min ms",
        "ext4, min ms",
        "ratio",
        "image, p50 ms",
        "ext4, p50 ms",
        "ratio",
        "requests, image",
        "requests, ext4",
    ];
    let mut table = Table::new(&columns);
    let mut ratios = [Vec::new(), Vec::new()];
    for name in names {
        let is_warm = is_warm(name);
        let of = |place: Place| {
            let is_one = |one: &&Measured| {
                one.place == place && one.done.workload == *name && one.done.is_warm == is_warm
            };
            all.iter().filter(is_one).collect::<Vec<_>>()
        };
        let [image, native] = [of(Place::Image), of(Place::Native)];
        let count = image.first().ok_or_else(|| format!("{name} has no result"))?.done.count;
        let times =
            |of: &[&Measured]| of.iter().map(|one| Duration::from_nanos(one.done.ns)).collect::<Times>();
        let [image_times, native_times] = [times(&image), times(&native)];
        let mut cells = vec![name.clone(), count.to_string()];
        for (percent, ratios) in [0, 50].into_iter().zip(&mut ratios) {
            let [image, native] = [&image_times, &native_times].map(|times| times.percentile(percent));
            let ratio = ratio(image, native);
            ratios.push(ratio);
            cells.extend([milliseconds(image), milliseconds(native), format!("{ratio:.2}")]);
        }
        cells.extend([requests(&image), requests(&native)]);
        table.row(cells);
    }
    let [fastest, middle] =
        ratios.map(|ratios| (geometric_mean(&ratios), ratios.into_iter().fold(0.0, f64::max)));
    Ok(format!(
        "{table}\nGeometric mean of the ratios: {:.2} of the fastest executions, {:.2} of the medians. The \
         largest ratio is {:.2} of the fastest ones, {:.2} of the medians.",
        fastest.0, middle.0, fastest.1, middle.1
    ))
}

/// Reads, writes and flushes, in the median.
fn requests(of: &[&Measured]) -> String {
    let median = |field: fn(&Requests) -> u64| {
        let mut values: Vec<_> = of.iter().map(|one| field(&one.requests)).collect();
        values.sort_unstable();
        values[values.len() / 2]
    };
    let [reads, writes, flushes] =
        [median(|all| all.reads), median(|all| all.writes), median(|all| all.flushes)];
    format!("{reads}, {writes}, {flushes}")
}
