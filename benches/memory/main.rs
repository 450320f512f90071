//! Cost of snapshots, forks and pools for a guest, and for the caller that waits for one. See [`Options`].
//!
//! `pause` times snapshots of a guest that writes to memory all the time, `disk` of one that writes to disk.
//! `birth` times VM creation; `rewind` times the return to the snapshot. `response` times a restored VM's
//! answer, by kind of memory. `guest` runs the guests. `protect` is an experiment with another way to copy
//! memory while it is written.

mod birth;
mod disk_pause;
mod guest;
mod pause;
mod protect;
mod response;
mod rewind;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use volt_benches::command_line::{self, Only};
use volt_benches::document::{Document, circumstances};
use volt_benches::scratch::Scratch;
use volt_benches::{Result, host};

const DOCUMENT: &str = "docs/benchmarks-memory.md";

/// The same as in the binary `volt-vmm`.
#[global_allocator]
static HEAP: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// Measures snapshots, restores, forks and rewinds of running guests.
///
/// It measures the pause of a guest for a snapshot, the time until a restored or forked VM runs, and the time
/// of a rewind. By kind of memory, it measures the time to a restored VM's answer.
#[derive(Debug, Parser)]
#[command(
    args_override_self = true,
    name = "memory",
    bin_name = "cargo bench -p volt-benches --bench memory --"
)]
struct Options {
    /// Runs of each measurement
    #[arg(long, value_name = "N", default_value_t = 40)]
    runs: usize,

    /// MiB that the guest has touched, separated by commas
    #[arg(
        long = "touched",
        value_name = "LIST",
        value_delimiter = ',',
        action = clap::ArgAction::Set,
        default_values_t = [128, 4096]
    )]
    touched_mib: Vec<u64>,

    /// MiB that a disk's layer holds, separated by commas
    #[arg(
        long = "layers",
        value_name = "LIST",
        value_delimiter = ',',
        action = clap::ArgAction::Set,
        default_values_t = [64, 2048]
    )]
    layers_mib: Vec<u64>,

    #[command(flatten)]
    only: Only<Part>,

    /// Guest memory for response: the memory.snap of a snapshot (default: of a Linux guest that ran Python
    /// and a build, which scripts/memory-image.sh makes)
    #[arg(long, value_name = "FILE")]
    memory: Option<PathBuf>,

    /// For response: let earlier VMs run on, which takes processor time from the measured one
    #[arg(long)]
    unpaused: bool,

    /// Write the result to docs/benchmarks-memory.md
    #[arg(long)]
    write_docs: bool,
}

/// Parts of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    Pause,
    Disk,
    Birth,
    Rewind,
    Response,
    Protect,
}

fn main() -> ExitCode {
    command_line::run(run)
}

fn run(options: &Options) -> Result<()> {
    let scratch = Scratch::new()?;
    let mut document = Document::default();
    document.say(&format!(
        "# Snapshots and forks of running guests\n\n\
         The benchmark itself writes this page (`--write-docs`). {}",
        circumstances("memory", &command_line::given(), host::load())
    ));
    let mut say =
        |title: &str, about: &str, table| document.say(&format!("## {title}\n\n{about}\n\n{table}"));
    if options.only.has(&Part::Pause) {
        let table = pause::measure(&scratch, &options.touched_mib, options.runs)?;
        say("Pause of a guest", pause::ABOUT, table);
    }
    if options.only.has(&Part::Disk) {
        let table = disk_pause::measure(&scratch, &options.layers_mib, options.runs)?;
        say("Pause of a guest that writes to a disk", disk_pause::ABOUT, table);
    }
    if options.only.has(&Part::Birth) {
        let (table, steps) = birth::measure(&scratch, options.runs)?;
        say("Time until a VM runs", birth::ABOUT, table);
        say("Steps of a restore from the pool", birth::ABOUT_STEPS, steps);
    }
    if options.only.has(&Part::Rewind) {
        let table = rewind::measure(&scratch, options.runs)?;
        say("Time of a rewind", rewind::ABOUT, table);
    }
    if options.only.has(&Part::Response) {
        let table = response::measure(&scratch, options.runs, options.memory.as_deref(), options.unpaused)?;
        say("Time to a restored VM's answer", response::ABOUT, table);
    }
    if options.only.has(&Part::Protect) {
        let about = format!("{}\n\n{}", protect::ABOUT, protect::DECISION);
        say("Write protection instead of the dirty log", &about, protect::measure(options.runs.div_ceil(4))?);
    }
    if options.write_docs { document.write(DOCUMENT) } else { Ok(()) }
}
