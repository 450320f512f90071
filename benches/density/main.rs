//! How much of a host a fork takes, alive and afterwards. See [`HELP`].
//!
//! `alive` and `processes` count the memory of many at once, `sequence` what is left of many that are gone;
//! `held` reads the kernel's books.

mod alive;
mod guest;
mod held;
mod processes;
mod sequence;

use std::process::ExitCode;

use volt_benches::command_line::{self, Parts, number, options};
use volt_benches::document::{Document, circumstances};
use volt_benches::scratch::Scratch;
use volt_benches::{Result, host};
use volt_vmm::IrqchipKind;

const DOCUMENT: &str = "docs/benchmarks-density.md";

const HELP: &str = "\
Measures what forks of one VM take of the host: many alive at once, and many in sequence.

cargo bench -p volt-benches --bench density [-- OPTION...]

  --alive N         forks alive at once (default 1000)
  --sequence N      forks in sequence in one process (default 10000)
  --spawned N       forks in sequence, each a process of its own (default 500)
  --memory MIB      memory of the VM (default 256)
  --touched MIB     how much of it the VM has touched when it is forked (default 200)
  --irqchip KIND    kernel or split (default: volt-vmm's)
  --only LIST       of alive, processes, sequence, spawned (default all)
  --write-docs      put the result in docs/benchmarks-density.md
  --help

Memory that other programs take or give back meanwhile counts in the column of kernel memory.";

const PARTS: &[&str] = &["alive", "processes", "sequence", "spawned"];

/// The same as in the binary `volt-vmm`.
#[global_allocator]
static HEAP: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// See [`HELP`].
#[derive(Debug)]
struct Options {
    alive: usize,
    sequence: usize,
    spawned: usize,
    memory_mib: u64,
    touched_mib: u64,
    irqchip: IrqchipKind,
    only: Parts,
    write_docs: bool,
    line: String,
}

impl Options {
    fn parse(arguments: impl Iterator<Item = String>) -> Result<Option<Self>> {
        let mut asked = Self {
            alive: 1000,
            sequence: 10_000,
            spawned: 500,
            memory_mib: 256,
            touched_mib: 200,
            irqchip: IrqchipKind::default(),
            only: Parts::all(PARTS),
            write_docs: false,
            line: String::new(),
        };
        let line = options(arguments, HELP, |option, value| {
            match option {
                "--alive" => asked.alive = number(&value()?)?,
                "--sequence" => asked.sequence = number(&value()?)?,
                "--spawned" => asked.spawned = number(&value()?)?,
                "--memory" => asked.memory_mib = number(&value()?)?,
                "--touched" => asked.touched_mib = number(&value()?)?,
                "--irqchip" => asked.irqchip = value()?.parse()?,
                "--only" => asked.only.choose(&value()?)?,
                "--write-docs" => asked.write_docs = true,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        if asked.touched_mib + 16 > asked.memory_mib {
            return Err(format!("--touched {}: more than the VM has", asked.touched_mib));
        }
        Ok(line.map(|line| Self { line, ..asked }))
    }
}

fn main() -> ExitCode {
    command_line::run("density", HELP, Options::parse, run)
}

fn run(options: &Options) -> Result<()> {
    let scratch = Scratch::new()?;
    let mut document = Document::default();
    document.say(&format!(
        "# Resources of forks on the host\n\n\
         The benchmark itself writes this page (`--write-docs`). {}\n\
         The host has {} MiB of memory. The VM has {} MiB and one vCPU, has touched {} MiB of them, and \
         sleeps; irqchip: {}.\n",
        circumstances("density", &options.line, host::load()),
        held::host_mib()?,
        options.memory_mib,
        options.touched_mib,
        options.irqchip,
    ));
    let wants = |part: &str| options.only.have(part);
    if wants("alive") || wants("processes") {
        let mut table = alive::table();
        // Processes first: what this one has had, it keeps.
        if wants("processes") {
            processes::alive(options, &scratch, &mut table)?;
        }
        if wants("alive") {
            alive::measure(options, &scratch, &mut table)?;
        }
        document.say(&format!("## Alive at once\n\n{}\n\n{table}", alive::ABOUT));
    }
    if wants("sequence") || wants("spawned") {
        let mut table = sequence::table();
        if wants("sequence") {
            sequence::measure(options, &scratch, &mut table)?;
        }
        if wants("spawned") {
            processes::in_sequence(options, &scratch, &mut table)?;
        }
        document.say(&format!("## In sequence\n\n{}\n\n{table}", sequence::ABOUT));
    }
    if options.write_docs { document.write(DOCUMENT) } else { Ok(()) }
}
