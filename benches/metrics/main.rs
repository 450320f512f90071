//! Time of `volt-vmm metrics` over many VMs. See [`Options`].

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use clap::Parser;
use volt_benches::api::{Connection, request};
use volt_benches::command_line::Program;
use volt_benches::document::{Document, circumstances};
use volt_benches::forks::{Children, Parent};
use volt_benches::process::run_to_end;
use volt_benches::scratch::Scratch;
use volt_benches::stats::percentiles;
use volt_benches::table::Table;
use volt_benches::turns::{Contender, in_turn};
use volt_benches::{OrSay, Result, command_line, host, programs};
use volt_vmm::IrqchipKind;

const DOCUMENT: &str = "docs/benchmarks-metrics.md";

/// Most children of one fork.
const BATCH: usize = 100;
/// Memory of a VM in MiB, and the part that the parent has touched.
const MEMORY_MIB: u64 = 128;
const TOUCHED_MIB: u64 = 16;
/// Scrapes of a quick run.
const QUICK: usize = 10;
/// Pause between two runs.
const PAUSE: Duration = Duration::from_millis(20);

/// Measures how fast the metrics of many VMs are there, from exec to exit.
#[derive(Debug, Parser)]
#[command(
    args_override_self = true,
    name = "metrics",
    bin_name = "cargo bench -p volt-benches --bench metrics --"
)]
struct Options {
    /// VMs
    #[arg(long, value_name = "N", default_value_t = 200)]
    vms: usize,

    /// Scrapes
    #[arg(long, value_name = "N", default_value_t = 50)]
    rounds: usize,

    #[command(flatten)]
    program: Program,

    /// Take few scrapes (10)
    #[arg(long)]
    quick: bool,

    /// Write the result to docs/benchmarks-metrics.md
    #[arg(long)]
    write_docs: bool,
}

fn main() -> ExitCode {
    command_line::run(run)
}

fn run(options: &Options) -> Result<()> {
    let load = host::load();
    let scratch = Scratch::new()?;
    let volt_vmm = options.program.path()?;
    let shape = (MEMORY_MIB, IrqchipKind::default());
    let parent = Parent::boot_under(volt_vmm.clone(), &scratch, &format!("echo mib={TOUCHED_MIB}"), shape)?;
    let mut children = Children::default();
    let mut left = options.vms;
    while left > 0 {
        let count = left.min(BATCH);
        parent.fork(count, &scratch.path(&format!("batch-{left}")), &mut children)?;
        left -= count;
    }
    children.check()?;
    let rounds = if options.quick { QUICK } else { options.rounds };
    let empty = scratch.program("empty", programs::EMPTY)?;
    let contenders = vec![
        Contender::new("an empty static program", || run_to_end(&empty)),
        Contender::new("`GET /metrics` of all, by one thread of this benchmark", || ask_all(&children)),
        Contender::new("`volt-vmm metrics` of one VM", || scrape(&volt_vmm, &children, 1, false)),
        Contender::new("the sum of all", || scrape(&volt_vmm, &children, options.vms, false)),
        Contender::new("all, each for itself", || scrape(&volt_vmm, &children, options.vms, true)),
    ];
    let mut table = Table::new(&["ms, exec to exit", "min", "p50", "p90", "p99"]);
    for (name, times) in in_turn(contenders, rounds, PAUSE)? {
        table.row(std::iter::once(name).chain(percentiles(&times)));
    }
    let mut document = Document::default();
    document.say(&format!(
        "# Metrics of many VMs\n\n\
         The benchmark itself writes this page (`--write-docs`). {}\n\
         {} forks of a VM of {MEMORY_MIB} MiB, {TOUCHED_MIB} MiB of them touched, run in processes of their \
         own and sleep. Runs of all rows take turns. The first row is a floor, a program that does nothing. \
         The second is for comparison: the requests alone, one after another, where the commands ask many \
         VMs at once. [Metrics](metrics.md) says what `volt-vmm metrics` prints. The target for the sum of \
         200 VMs is 50 ms.\n\n{table}",
        circumstances("metrics", &command_line::given(), load),
        options.vms,
    ));
    if options.write_docs { document.write(DOCUMENT) } else { Ok(()) }
}

/// Asks all VMs for their metrics, one after another.
fn ask_all(children: &Children) -> Result<Duration> {
    let get = request("GET", "/metrics", "");
    let began = Instant::now();
    for (_, socket) in children.all() {
        Connection::open(socket)?.ask(&get)?;
    }
    Ok(began.elapsed())
}

/// Scrapes so many of the VMs once. Returns the time that it took.
fn scrape(volt_vmm: &Path, children: &Children, count: usize, by_vm: bool) -> Result<Duration> {
    let mut command = Command::new(volt_vmm);
    command.arg("metrics").args(by_vm.then_some("--by-vm"));
    command.args(children.all().take(count).map(|(_, socket)| socket));
    let began = Instant::now();
    let done = command.output().or_say("run volt-vmm metrics")?;
    let took = began.elapsed();
    let answered = format!("volt_vmm_scraped_vms{{outcome=\"answered\"}} {count}");
    match String::from_utf8_lossy(&done.stdout).lines().any(|line| line == answered) {
        true => Ok(took),
        false => Err(format!("not {count} VMs answered: {}", String::from_utf8_lossy(&done.stderr))),
    }
}
