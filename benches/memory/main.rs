//! Cost of snapshots, forks and pools for a guest, and for the caller that waits for one. See [`HELP`].
//!
//! `pause` measures snapshots of a guest that writes to memory all the time, `disk` of one that writes to a
//! disk, `birth` how soon a VM is there, `rewind` how soon it is again what it was, `response` how soon it
//! answers, by what its memory is in; `guest` runs them. `protect` is an experiment with another way to copy
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

use volt_benches::command_line::{self, Parts, number, numbers, options};
use volt_benches::document::{Document, circumstances};
use volt_benches::scratch::Scratch;
use volt_benches::{Result, host};

const DOCUMENT: &str = "docs/benchmarks-memory.md";

const HELP: &str = "\
Measures the pause of a guest for a snapshot, the time until a restored or forked VM runs, the time of a
rewind, and the time to a restored VM's answer, by kind of memory.

cargo bench -p volt-benches --bench memory [-- OPTION...]

  --runs N          runs of each (default 40)
  --touched LIST    MiB that the guest has touched (default 128,4096)
  --layers LIST     MiB that a disk's layer holds (default 64,2048)
  --only LIST       of pause, disk, birth, rewind, response, protect (default all)
  --memory FILE     guest memory for response: the memory.snap of a snapshot (default: of a Linux that ran
                    Python and a build, which scripts/memory-image.sh makes)
  --unpaused        for response: earlier VMs run on, and take processor time from the measured one
  --write-docs      put the result in docs/benchmarks-memory.md
  --help";

/// The same as in the binary `volt-vmm`.
#[global_allocator]
static HEAP: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

#[derive(Debug)]
struct Options {
    runs: usize,
    touched_mib: Vec<u64>,
    layers_mib: Vec<u64>,
    only: Parts,
    memory: Option<PathBuf>,
    unpaused: bool,
    write_docs: bool,
    line: String,
}

impl Options {
    fn parse(arguments: impl Iterator<Item = String>) -> Result<Option<Self>> {
        let mut asked = Self {
            runs: 40,
            touched_mib: vec![128, 4096],
            layers_mib: vec![64, 2048],
            only: Parts::all(&["pause", "disk", "birth", "rewind", "response", "protect"]),
            memory: None,
            unpaused: false,
            write_docs: false,
            line: String::new(),
        };
        let line = options(arguments, HELP, |option, value| {
            match option {
                "--runs" => asked.runs = number(&value()?)?,
                "--touched" => asked.touched_mib = numbers(&value()?)?,
                "--layers" => asked.layers_mib = numbers(&value()?)?,
                "--only" => asked.only.choose(&value()?)?,
                "--memory" => asked.memory = Some(value()?.into()),
                "--unpaused" => asked.unpaused = true,
                "--write-docs" => asked.write_docs = true,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(line.map(|line| Self { line, ..asked }))
    }
}

fn main() -> ExitCode {
    command_line::run("memory", HELP, Options::parse, run)
}

fn run(options: &Options) -> Result<()> {
    let scratch = Scratch::new()?;
    let mut document = Document::default();
    document.say(&format!(
        "# Snapshots and forks of running guests\n\n\
         The benchmark itself writes this page (`--write-docs`). {}",
        circumstances("memory", &options.line, host::load())
    ));
    let mut say =
        |title: &str, about: &str, table| document.say(&format!("## {title}\n\n{about}\n\n{table}"));
    if options.only.have("pause") {
        let table = pause::measure(&scratch, &options.touched_mib, options.runs)?;
        say("Pause of a guest", pause::ABOUT, table);
    }
    if options.only.have("disk") {
        let table = disk_pause::measure(&scratch, &options.layers_mib, options.runs)?;
        say("Pause of a guest that writes to a disk", disk_pause::ABOUT, table);
    }
    if options.only.have("birth") {
        let (table, steps) = birth::measure(&scratch, options.runs)?;
        say("Time until a VM runs", birth::ABOUT, table);
        say("Steps of a restore from the pool", birth::ABOUT_STEPS, steps);
    }
    if options.only.have("rewind") {
        let table = rewind::measure(&scratch, options.runs)?;
        say("Time of a rewind", rewind::ABOUT, table);
    }
    if options.only.have("response") {
        let table = response::measure(&scratch, options.runs, options.memory.as_deref(), options.unpaused)?;
        say("Time to a restored VM's answer", response::ABOUT, table);
    }
    if options.only.have("protect") {
        let about = format!("{}\n\n{}", protect::ABOUT, protect::DECISION);
        say("Write protection instead of the dirty log", &about, protect::measure(options.runs.div_ceil(4))?);
    }
    if options.write_docs { document.write(DOCUMENT) } else { Ok(()) }
}
