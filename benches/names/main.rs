//! The command line with many VMs of names: how long one VM takes to start by name, and `ps` to list all.

use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;
use volt_benches::api::{Connection, request};
use volt_benches::command_line::Program;
use volt_benches::document::{Document, circumstances};
use volt_benches::process::run_to_end;
use volt_benches::scratch::Scratch;
use volt_benches::stats::{Times, percentiles};
use volt_benches::table::Table;
use volt_benches::turns::{Contender, in_turn};
use volt_benches::{OrSay, Result, command_line, host, programs};

const DOCUMENT: &str = "docs/benchmarks-names.md";

/// Measures commands on many VMs with names.
#[derive(Debug, Parser)]
#[command(
    args_override_self = true,
    name = "names",
    bin_name = "cargo bench -p volt-benches --bench names --"
)]
struct Options {
    /// VMs alive at once
    #[arg(long, value_name = "N", default_value_t = 200)]
    vms: usize,

    /// Runs of each command
    #[arg(long, value_name = "N", default_value_t = 30)]
    runs: usize,

    /// Run each command a few times (10)
    #[arg(long)]
    quick: bool,

    #[command(flatten)]
    program: Program,

    /// Write the result to docs/benchmarks-names.md
    #[arg(long)]
    write_docs: bool,
}

/// Runs of each command in a quick run.
const QUICK: usize = 10;
/// Pause between two runs.
const PAUSE: Duration = Duration::from_millis(20);

fn main() -> ExitCode {
    command_line::run(run)
}

/// VMs with names in a run directory of this benchmark. They are killed on drop.
struct Names {
    program: PathBuf,
    runtime: PathBuf,
}

impl Names {
    fn new(scratch: &Scratch, program: PathBuf) -> Result<Self> {
        let runtime = scratch.path("run");
        DirBuilder::new().mode(0o700).create(&runtime).or_say("make a run directory")?;
        Ok(Self { program, runtime })
    }

    /// Runs a command to its end. Returns its output and its time from exec.
    fn run<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Result<(Vec<u8>, Duration)> {
        let mut command = Command::new(&self.program);
        command.args(words).env("VOLT_RUN_DIR", &self.runtime).stdin(Stdio::null());
        let start = Instant::now();
        let output = command.output().or_say("run volt-vmm")?;
        let took = start.elapsed();
        match output.status.success() {
            true => Ok((output.stdout, took)),
            false => Err(String::from_utf8_lossy(&output.stderr).trim_end().to_owned()),
        }
    }

    /// Asks all VMs for their state, one after another.
    fn ask_all(&self, vms: usize) -> Result<Duration> {
        let get = request("GET", "/", "");
        let start = Instant::now();
        for number in 0..vms {
            let socket = self.runtime.join(format!("vm-{number}/api.sock"));
            Connection::open(&socket)?.ask(&get)?;
        }
        Ok(start.elapsed())
    }

    fn boot(&self, guest: &Path, name: &str) -> Result<Duration> {
        let guest = guest.to_str().ok_or("the path of the guest is no text")?;
        let words =
            ["run", "--detach", "--name", name, "--kernel", guest, "--cmdline", "echo", "--memory", "16M"];
        self.run(words).map(|(_, took)| took)
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        let Ok((names, _)) = self.run(["ps", "--quiet"]) else { return };
        let names = String::from_utf8_lossy(&names).into_owned();
        // The end of the benchmark reports nothing any more.
        let _ = self.run(std::iter::once("kill").chain(names.lines()));
    }
}

fn run(options: &Options) -> Result<()> {
    let load = host::load();
    let scratch = Scratch::new()?;
    let guest = scratch.program("guest", programs::SMALL_GUEST)?;
    let names = Names::new(&scratch, options.program.path()?)?;
    let starts = (0..options.vms).map(|number| names.boot(&guest, &format!("vm-{number}")));
    let starts = starts.collect::<Result<Times>>()?;
    let (listed, _) = names.run(["ps", "--quiet"])?;
    let found = listed.iter().filter(|byte| **byte == b'\n').count();
    if found != options.vms {
        return Err(format!("ps lists {found} of {} VMs", options.vms));
    }
    let empty = scratch.program("empty", programs::EMPTY)?;
    let (names, vms) = (&names, options.vms);
    let command = |name: &str, words: &'static [&str]| {
        Contender::new(name, move || names.run(words).map(|(_, took)| took))
    };
    let contenders = vec![
        Contender::new("an empty static program", || run_to_end(&empty)),
        Contender::new("`GET /` of all, by one thread of this benchmark", || names.ask_all(vms)),
        command("`ps`", &["ps"]),
        command("`ps --json`", &["ps", "--json"]),
        command("`inspect NAME`", &["inspect", "vm-0"]),
        command("`logs NAME`", &["logs", "vm-0"]),
    ];
    let runs = if options.quick { QUICK } else { options.runs };
    let mut table = Table::new(&["command, ms from exec to its end", "runs", "min", "p50", "p90", "p99"]);
    let started = [("`run --detach`, until the VM runs".to_owned(), starts)];
    for (name, times) in started.into_iter().chain(in_turn(contenders, runs, PAUSE)?) {
        table.row([name, times.len().to_string()].into_iter().chain(percentiles(&times)));
    }
    let mut document = Document::default();
    document.say(&format!(
        "# VMs with names\n\nThe benchmark itself writes this page (`--write-docs`). {}\n\
         {} VMs of 16 MiB and one vCPU run and sleep. `ps` asks each for its state. Runs of all rows but the \
         first take turns. The second row is a floor, a program that does nothing. The third is for \
         comparison: the requests alone, one after another, where `ps` asks several VMs at once. The target \
         for `ps` of 200 VMs is 100 ms.\n\n{table}",
        circumstances("names", &command_line::given(), load),
        options.vms,
    ));
    if options.write_docs { document.write(DOCUMENT) } else { Ok(()) }
}
