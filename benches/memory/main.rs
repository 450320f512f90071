//! What snapshots, forks and pools cost a guest and whoever waits for one. See [`HELP`].
//!
//! `pause` measures snapshots of a guest that writes all the time, `birth` how soon a VM is there, `guest` runs them.

mod birth;
mod guest;
mod pause;

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use volt_benches::command_line::{self, number};
use volt_benches::scratch::Scratch;
use volt_benches::{OrSay, Result, host};

const DOCUMENT: &str = "../docs/benchmarks-memory.md";

const HELP: &str = "\
Measures how long a guest stands still for a snapshot, and how soon a restored or forked VM runs.

cargo bench -p volt-benches --bench memory [-- OPTION...]

  --runs N          runs of each (default 40)
  --touched LIST    MiB that the guest has touched (default 128,4096)
  --only LIST       of pause, birth (default both)
  --write-docs      put the result in docs/benchmarks-memory.md
  --help";

/// The same as in the binary `volt-vmm`.
#[global_allocator]
static HEAP: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

#[derive(Debug)]
struct Options {
    runs: usize,
    touched_mib: Vec<u64>,
    only: Vec<String>,
    write_docs: bool,
    line: String,
}

impl Options {
    fn parse(arguments: impl Iterator<Item = String>) -> Result<Option<Self>> {
        // cargo bench adds the first.
        let given: Vec<_> = arguments.filter(|argument| argument != "--bench").collect();
        let mut options = Self {
            runs: 40,
            touched_mib: vec![128, 4096],
            only: ["pause", "birth"].map(str::to_owned).into(),
            write_docs: false,
            line: given.join(" "),
        };
        let mut given = given.into_iter();
        while let Some(option) = given.next() {
            let mut value = || given.next().ok_or_else(|| format!("{option} needs a value"));
            match option.as_str() {
                "--runs" => options.runs = number(&value()?)?,
                "--touched" => {
                    options.touched_mib = value()?.split(',').map(number).collect::<Result<_>>()?
                }
                "--only" => options.only = value()?.split(',').map(str::to_owned).collect(),
                "--write-docs" => options.write_docs = true,
                "--help" => return Ok(None),
                _ => return Err(format!("{option}: no such option; --help lists them")),
            }
        }
        Ok(Some(options))
    }
}

fn main() -> ExitCode {
    command_line::run("memory", HELP, Options::parse, run)
}

fn run(options: &Options) -> Result<()> {
    let scratch = Scratch::new()?;
    let mut text = format!(
        "# Snapshots and forks of running guests\n\nWritten by the benchmark itself (`--write-docs`). {}, {} CPUs; Linux {}; load average at \
         the start {:.1}.\n\n```sh\ncargo bench -p volt-benches --bench memory -- {}\n```\n",
        host::cpu(),
        host::cpus(),
        host::kernel(),
        host::load(),
        options.line,
    );
    if options.only.iter().any(|part| part == "pause") {
        let table = pause::measure(&scratch, &options.touched_mib, options.runs)?;
        let _ = writeln!(text, "\n## How long a guest stands still\n\n{}\n\n{table}", pause::ABOUT);
    }
    if options.only.iter().any(|part| part == "birth") {
        let table = birth::measure(&scratch, options.runs)?;
        let _ = writeln!(text, "\n## How soon a VM runs\n\n{}\n\n{table}", birth::ABOUT);
    }
    println!("{text}");
    if options.write_docs {
        std::fs::write(Path::new(DOCUMENT), text).or_say("write the document")?;
    }
    Ok(())
}
