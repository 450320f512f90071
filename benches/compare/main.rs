//! Compares two builds of volt-vmm: the same acts by either, in turns. See [`Options`].
//!
//! ```text
//!   driver ──┬── a build's `volt-vmm`: processes, timed from exec (`processes`)
//!            └── a build's `compare --probe`: acts of the library, one a line of its input (`probe`)
//! ```
//!
//! `benches/compare.sh` builds both revisions and runs this.

mod build;
mod fresh;
mod probe;
mod processes;
mod rows;

use std::path::PathBuf;
use std::process::ExitCode;

use build::Build;
use clap::{Parser, ValueEnum};
use rows::Rows;
use volt_benches::command_line::{self, Only};
use volt_benches::document::Document;
use volt_benches::{Result, built, host, process};

/// The same as in the binary `volt-vmm`.
#[global_allocator]
static HEAP: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// Compares two builds of volt-vmm: each act is done by both in turns.
#[derive(Debug, Parser)]
#[command(name = "compare", bin_name = "cargo bench -p volt-benches --bench compare --")]
#[command(after_help = "benches/compare.sh OLD [NEW] builds two revisions and runs this on them.")]
struct Options {
    /// Directory with `volt-vmm` and `compare` of the old revision
    #[arg(long, value_name = "DIR", required_unless_present = "probe")]
    old: Option<PathBuf>,

    /// Directory with `volt-vmm` and `compare` of the new revision
    #[arg(long, value_name = "DIR", required_unless_present = "probe")]
    new: Option<PathBuf>,

    /// Runs of each act
    #[arg(long, value_name = "N", default_value_t = 40)]
    runs: usize,

    #[command(flatten)]
    only: Only<Part>,

    /// Measure only acts of the library, by N fresh processes of each build in turns with --runs in each
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    processes: usize,

    /// With --processes: measure only this act, named without its comma and the words after it (repeatable)
    #[arg(long = "act", value_name = "NAME", value_parser = act_of_library)]
    acts: Vec<&'static str>,

    /// Guest memory for acts on packed memory (default: what scripts/memory-image.sh makes)
    #[arg(long, value_name = "FILE")]
    memory: Option<PathBuf>,

    /// Give processes and acts on packed memory priority over other programs (SCHED_FIFO, as root)
    ///
    /// Acts on VMs run without priority, since guests that never sleep would starve their own process.
    #[arg(long)]
    realtime: bool,

    /// Serve acts on standard input: the driver runs this of either build
    #[arg(long)]
    probe: bool,
}

/// Parts of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    Process,
    Library,
    Memory,
}

impl Options {
    fn memory(&self) -> Result<PathBuf> {
        let usual = || built::memory_image().map(|snapshot| snapshot.join("memory.snap"));
        self.memory.clone().map_or_else(usual, Ok)
    }
}

fn main() -> ExitCode {
    command_line::run(run)
}

fn run(options: &Options) -> Result<()> {
    if options.probe {
        return probe::serve(options.memory.clone());
    }
    let (Some(old), Some(new)) = (&options.old, &options.new) else {
        return Err("--old and --new are needed".to_owned());
    };
    if options.processes > 0 {
        return compare_fresh(options, [old, new]);
    }
    let memory = if options.only.has(&Part::Memory) { Some(options.memory()?) } else { None };
    let load = host::load();
    let mut builds = [Build::start(old, memory.as_deref())?, Build::start(new, memory.as_deref())?];
    if options.realtime {
        // The probes run already, and stay as they are. Processes that are started from now on inherit it.
        process::go_first()?;
    }
    let mut rows = Rows::default();
    if options.only.has(&Part::Process) {
        eprintln!("measuring processes");
        processes::measure(&builds, options.runs, &mut rows)?;
    }
    let acts = [(Part::Library, probe::LIBRARY), (Part::Memory, probe::MEMORY)];
    for (part, acts) in acts.into_iter().filter(|(part, _)| options.only.has(part)) {
        if options.realtime && part == Part::Memory {
            builds.iter_mut().try_for_each(|build| build.act(probe::GO_FIRST).map(drop))?;
        }
        for act in acts {
            eprintln!("measuring: {act}");
            let runs = if part == Part::Memory { options.runs.div_ceil(4) } else { options.runs };
            measure(&mut builds, act, runs, &mut rows)?;
        }
    }
    let mut document = Document::default();
    document.say(&format!("{}. Options: {}\n", host::circumstances(load), command_line::given()));
    document.say(&rows.table().to_string());
    if options.only.has(&Part::Process) {
        document.say(&processes::sizes(&builds)?.to_string());
    }
    Ok(())
}

/// The act of the library that a user names: "fork" is "fork, call to first byte".
fn act_of_library(name: &str) -> Result<&'static str> {
    let is_named = |act: &&&str| act.split_once(',').map_or(**act, |(short, _)| short) == name;
    let unknown = || format!("--act {name}: none of {}", probe::LIBRARY.join("; "));
    probe::LIBRARY.iter().find(is_named).copied().ok_or_else(unknown)
}

/// See [`fresh`].
fn compare_fresh(options: &Options, builds: [&PathBuf; 2]) -> Result<()> {
    let load = host::load();
    let acts = if options.acts.is_empty() { probe::LIBRARY } else { &options.acts };
    let table = fresh::measure(&builds, acts, options.processes, options.runs)?;
    let mut document = Document::default();
    document.say(&format!("{}. Options: {}\n", host::circumstances(load), command_line::given()));
    document.say(&table.to_string());
    Ok(())
}

/// Does one act by both builds in turns. Each is the first in every second round.
fn measure(builds: &mut [Build; 2], act: &str, runs: usize, rows: &mut Rows) -> Result<()> {
    for run in 0..=runs {
        for turn in [run % 2, (run + 1) % 2] {
            let times = builds[turn].act(act)?;
            // The first round warms both up.
            if run > 0 {
                times.into_iter().for_each(|(part, time)| rows.add(&format!("{act}{part}"), turn, time));
            }
        }
    }
    Ok(())
}
