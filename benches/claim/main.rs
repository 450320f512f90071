//! How long a user waits for the first output of a command, by the way to the VM that runs it.

mod beside;
mod calls;
mod client;
mod faults;
mod peer;
mod phases;
mod vms;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use volt_benches::document::{Document, circumstances};
use volt_benches::image_host::{ImageHost, ImageOptions};
use volt_benches::scratch::Scratch;
use volt_benches::stats::{Times, more, percentiles, ratio};
use volt_benches::table::Table;
use volt_benches::turns::{Contender, in_turn};
use volt_benches::{Result, command_line, host};

use vms::{PLAIN, QUIET, RUNNING, Vms};

const DOCUMENT: &str = "docs/benchmarks-claim.md";
/// The row that others are compared with.
const BASELINE: &str = "`exec` in a VM that has run for a while";
const ABOUT: &str = "Times from the exec of volt-vmm to the first byte of the command's output. A VM runs \
the image, and has run the command before. For a quiet fork, the parent's agent freezes the workload, and \
the child takes entropy, time and a name of its own before the command starts. The first child leaves the \
working set of later ones. A warm `run` is restored from the snapshot that the first one left. The next \
one leaves the working set: the pages that it touched up to its first output. All ways but the first run \
take turns.";

/// Times commands in VMs of an image.
///
/// If the environment variable VOLT_PEER_FIRECRACKER names a program of Firecracker, a VM of it runs the same
/// guest, and is forked too.
#[derive(Debug, Parser)]
#[command(
    args_override_self = true,
    name = "claim",
    bin_name = "cargo bench -p volt-benches --bench claim --"
)]
struct Options {
    #[command(flatten)]
    image: ImageOptions,

    /// Runs of each way
    #[arg(long, value_name = "N", default_value_t = 20)]
    runs: usize,

    /// Runs that boot
    #[arg(long, value_name = "N", default_value_t = 3)]
    boots: usize,

    /// Write the result to docs/benchmarks-claim.md
    #[arg(long)]
    write_docs: bool,

    /// The command [default: python3 -c 'print(1)']
    #[arg(value_name = "COMMAND", trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// Pause between two runs.
const PAUSE: Duration = Duration::from_millis(100);

fn main() -> ExitCode {
    command_line::run(run)
}

fn run(options: &Options) -> Result<()> {
    let load = host::load();
    let scratch = Scratch::new()?;
    let command = match &options.command[..] {
        [] => ["python3", "-c", "print(1)"].map(str::to_owned).to_vec(),
        given => given.to_vec(),
    };
    let mut image = options.image.shape();
    image.push(OsString::from(&options.image.image));
    let vms = Vms::new(ImageHost::new(&scratch, &options.image)?, image, command.clone());
    let boots = (0..options.boots).map(|_| vms.run(&["--cold"])).collect::<Result<Times>>()?;
    let first = [vms.run(&[])?].into_iter().collect::<Times>();
    vms.start_one()?;
    vms.exec(RUNNING)?;
    let contenders = vec![
        Contender::new(BASELINE, || vms.exec(RUNNING)),
        Contender::new("`fork`, then `exec` in the child", || vms.fork_and_exec(&PLAIN)),
        Contender::new("`fork --quiesce`, then `exec` in the child", || vms.fork_and_exec(&QUIET)),
        Contender::new("`run`, warm, without a working set", || vms.run_without_working_set()),
        Contender::new("`run`, warm", || vms.run(&[])),
    ];
    let in_turns = in_turn(contenders, options.runs, PAUSE)?;
    let baseline = in_turns[0].1.clone();
    let booted =
        [("`run --cold`".to_owned(), boots), ("first `run`, which leaves a snapshot".to_owned(), first)];
    let columns =
        ["exec to first output, ms", "runs", "min", "p50", "p90", "p99", "p50 more than exec", "p50 / exec"];
    let mut table = Table::new(&columns);
    for (name, times) in in_turns.into_iter().chain(booted) {
        let over = format!("{:.1}", more(&times, &baseline, 50));
        let times_as_long = format!("{:.2}", ratio(times.percentile(50), baseline.percentile(50)));
        let cells = [name, times.len().to_string()].into_iter().chain(percentiles(&times));
        table.row(cells.chain([over, times_as_long]));
    }
    let phases = phases::of(&vms, &scratch, options.runs)?;
    let faults = faults::of(&vms)?.map_or_else(String::new, |faults| format!("\n{faults}"));
    let beside = beside::of(&vms, &options.image, options.runs);
    let beside = beside.map_or_else(String::new, |beside| format!("\n{beside}"));
    // Last: the VM is slow from then on.
    let calls = calls::of(&vms, &scratch)?;
    let mut document = Document::default();
    document.say(&format!(
        "# From a call to the first output\n\nThe benchmark itself writes this page (`--write-docs`). {}\n\
         {ABOUT} The command is `{}`.\n\n{table}\n{phases}{beside}{faults}\n{calls}",
        circumstances("claim", &command_line::given(), load),
        command.join(" "),
    ));
    if options.write_docs { document.write(DOCUMENT) } else { Ok(()) }
}
