//! Fourteen workloads in a VM of an image, on the image's root file system and on ext4. See [`Options`].
//!
//! ```text
//! host: main, report, first_run ── volt-vmm run IMAGE ──> guest: rounds ── a process each ──> tasks
//! ```
//!
//! This program is also what runs in the VM: a volume has a copy of it.

mod files;
mod first_run;
mod measured;
mod plan;
mod reading;
mod report;
mod rounds;
mod tasks;
mod writing;

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{ExitCode, Stdio};

use clap::{Parser, ValueEnum};
use volt_benches::command_line::{self, Only};
use volt_benches::document::{Document, circumstances, origin};
use volt_benches::image_host::{ImageHost, ImageOptions};
use volt_benches::scratch::Scratch;
use volt_benches::{OrSay, Result, host};

use measured::Measured;

const DOCUMENT: &str = "docs/benchmarks-workloads.md";
/// The volume of the baseline.
const VOLUME: &str = "native";
/// Name of this program in the volume that has it.
const NAME: &str = "workloads";

/// The same as in the binary `volt-vmm`.
#[global_allocator]
static HEAP: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// Measures fourteen workloads in a VM of an image, on the root file system and on ext4 of the same guest,
/// and the first run of the image.
///
/// The image needs cp, tar, and a hundred programs that know --version.
#[derive(Debug, Parser)]
#[command(
    args_override_self = true,
    name = "workloads",
    bin_name = "cargo bench -p volt-benches --bench workloads --"
)]
struct Options {
    #[command(flatten)]
    image: ImageOptions,

    /// Rounds of all workloads; one more comes first, and does not count
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,

    /// First runs of each kind
    #[arg(long, value_name = "N", default_value_t = 5)]
    runs: usize,

    #[command(flatten)]
    only: Only<Part>,

    /// Write the result to docs/benchmarks-workloads.md
    #[arg(long)]
    write_docs: bool,
}

/// Parts of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    Workloads,
    FirstRun,
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let in_guest = match arguments[..] {
        [rounds::ORDER, count] => rounds::run(count),
        [tasks::ORDER, task, root] => tasks::run(task, root),
        _ => return command_line::run(run),
    };
    match in_guest {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("workloads in the guest: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    let load = host::load();
    let scratch = Scratch::new()?;
    let host = ImageHost::new(&scratch, &options.image)?;
    let mut document = Document::default();
    document.say(&format!(
        "# Workloads in VMs of images\n\n{} {}",
        origin("workloads"),
        circumstances("workloads", &command_line::given(), load)
    ));
    if options.only.has(&Part::Workloads) {
        report::workloads(&mut document, &in_guest(options, &scratch, &host)?)?;
    }
    if options.only.has(&Part::FirstRun) {
        first_run::measure(&mut document, options, &host)?;
    }
    if options.write_docs { document.write(DOCUMENT) } else { Ok(()) }
}

/// Runs all rounds in one VM.
fn in_guest(options: &Options, scratch: &Scratch, host: &ImageHost) -> Result<Vec<Measured>> {
    let programs = scratch.path("programs");
    fs::create_dir(&programs).or_say("make a directory")?;
    let this = std::env::current_exe().or_say("find this program")?;
    fs::copy(this, programs.join(NAME)).or_say("copy this program")?;
    host.output(["volume", "create", VOLUME])?;
    let volumes = [format!("{VOLUME}:{}", plan::NATIVE), format!("{}:/bench:ro", programs.display())];
    let mut words = ["run", "--rm", "--cold"].map(OsString::from).to_vec();
    words.extend(volumes.into_iter().flat_map(|volume| ["-v".into(), volume.into()]));
    words.extend(options.image.shape());
    words.extend([options.image.image.clone(), format!("/bench/{NAME}")].map(OsString::from));
    words.extend([rounds::ORDER.to_owned(), options.rounds.to_string()].map(OsString::from));
    let mut command = host.command(words);
    let mut run = command.stdout(Stdio::piped()).spawn().or_say("run volt-vmm")?;
    let output = BufReader::new(run.stdout.take().expect("it is a pipe"));
    let read = |line: std::io::Result<String>| {
        serde_json::from_str(&line.or_say("read the guest's output")?).or_say("read a result of the guest")
    };
    let all = output.lines().map(read).collect::<Result<Vec<Measured>>>()?;
    let status = run.wait().or_say("wait for volt-vmm")?;
    if status.success() { Ok(all) } else { Err(format!("the VM of the workloads ended with {status}")) }
}
