//! Compares two builds of volt-vmm: the same acts by either, in turns. See [`HELP`].
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
use rows::Rows;
use volt_benches::command_line::{self, Parts, number, options};
use volt_benches::document::Document;
use volt_benches::{Result, built, host, process};

const HELP: &str = "\
Compares two builds of volt-vmm: every act is done by the one and by the other in turns.

cargo bench -p volt-benches --bench compare -- --old DIR --new DIR [OPTION...]

  --old DIR         holds `volt-vmm` and `compare` of the old revision
  --new DIR         the same of the new revision
  --runs N          runs of each act (default 40)
  --only LIST       of process, library, memory (default all)
  --processes N     acts of the library by N fresh processes of each build in turns, --runs in each, and
                    nothing else
  --act NAME        only this act, named without its comma and the words after it (repeat it for more)
  --memory FILE     guest memory for the acts on packed memory (default: what scripts/memory-image.sh makes)
  --realtime        processes and acts on packed memory go before all other programs (SCHED_FIFO, for root);
                    acts on VMs do not, since guests that never sleep would starve their own process
  --probe           serve acts on standard input instead: what the driver runs of either build
  --help

benches/compare.sh OLD [NEW] builds two revisions and runs this on them.";

/// The same as in the binary `volt-vmm`.
#[global_allocator]
static HEAP: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

#[derive(Debug)]
struct Options {
    builds: [Option<PathBuf>; 2],
    runs: usize,
    only: Parts,
    processes: usize,
    acts: Vec<&'static str>,
    memory: Option<PathBuf>,
    realtime: bool,
    probe: bool,
    line: String,
}

impl Options {
    fn parse(arguments: impl Iterator<Item = String>) -> Result<Option<Self>> {
        let mut asked = Self {
            builds: [None, None],
            runs: 40,
            only: Parts::all(&["process", "library", "memory"]),
            processes: 0,
            acts: Vec::new(),
            memory: None,
            realtime: false,
            probe: false,
            line: String::new(),
        };
        let line = options(arguments, HELP, |option, value| {
            match option {
                "--old" => asked.builds[0] = Some(value()?.into()),
                "--new" => asked.builds[1] = Some(value()?.into()),
                "--runs" => asked.runs = number(&value()?)?,
                "--only" => asked.only.choose(&value()?)?,
                "--processes" => asked.processes = number(&value()?)?,
                "--act" => asked.acts.push(act_of_library(&value()?)?),
                "--memory" => asked.memory = Some(value()?.into()),
                "--realtime" => asked.realtime = true,
                "--probe" => asked.probe = true,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(line.map(|line| Self { line, ..asked }))
    }

    fn memory(&self) -> Result<PathBuf> {
        let usual = || built::memory_image().map(|snapshot| snapshot.join("memory.snap"));
        self.memory.clone().map_or_else(usual, Ok)
    }
}

fn main() -> ExitCode {
    command_line::run("compare", HELP, Options::parse, run)
}

fn run(options: &Options) -> Result<()> {
    if options.probe {
        return probe::serve(options.memory.clone());
    }
    let [Some(old), Some(new)] = &options.builds else {
        return Err(format!("--old and --new are needed\n\n{HELP}"));
    };
    if options.processes > 0 {
        return compare_fresh(options, [old, new]);
    }
    let memory = if options.only.have("memory") { Some(options.memory()?) } else { None };
    let load = host::load();
    let mut builds = [Build::start(old, memory.as_deref())?, Build::start(new, memory.as_deref())?];
    if options.realtime {
        // The probes run already, and stay as they are. Processes that are started from now on inherit it.
        process::go_first()?;
    }
    let mut rows = Rows::default();
    if options.only.have("process") {
        eprintln!("measuring processes");
        processes::measure(&builds, options.runs, &mut rows)?;
    }
    let acts = [("library", probe::LIBRARY), ("memory", probe::MEMORY)];
    for (part, acts) in acts.into_iter().filter(|(part, _)| options.only.have(part)) {
        if options.realtime && part == "memory" {
            builds.iter_mut().try_for_each(|build| build.act(probe::GO_FIRST).map(drop))?;
        }
        for act in acts {
            eprintln!("measuring: {act}");
            let runs = if part == "memory" { options.runs.div_ceil(4) } else { options.runs };
            measure(&mut builds, act, runs, &mut rows)?;
        }
    }
    let mut document = Document::default();
    document.say(&format!("{}. Options: {}\n", host::circumstances(load), options.line));
    document.say(&rows.table().to_string());
    if options.only.have("process") {
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
    document.say(&format!("{}. Options: {}\n", host::circumstances(load), options.line));
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
