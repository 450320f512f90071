//! How much of a host a fork takes, alive and afterwards. See [`Options`].
//!
//! `alive` and `processes` count the memory of many at once, `sequence` what is left of many that are gone;
//! `held` reads the kernel's books.

mod alive;
mod guest;
mod processes;
mod sequence;

use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use volt_benches::command_line::{self, Only};
use volt_benches::document::{Document, circumstances};
use volt_benches::scratch::Scratch;
use volt_benches::{Result, held, host};
use volt_vmm::IrqchipKind;

const DOCUMENT: &str = "docs/benchmarks-density.md";

/// The same as in the binary `volt-vmm`.
#[global_allocator]
static HEAP: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// Measures the host's resources that forks of one VM take: many alive at once, and many in sequence.
#[derive(Debug, Parser)]
#[command(
    args_override_self = true,
    name = "density",
    bin_name = "cargo bench -p volt-benches --bench density --"
)]
#[command(
    after_help = "Memory that other programs take or return meanwhile counts in the column of kernel memory."
)]
struct Options {
    /// Forks alive at once
    #[arg(long, value_name = "N", default_value_t = 1000)]
    alive: usize,

    /// Forks in sequence in one process
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    sequence: usize,

    /// Forks in sequence, each in its own process
    #[arg(long, value_name = "N", default_value_t = 500)]
    spawned: usize,

    /// Memory of the VM in MiB
    #[arg(long = "memory", value_name = "MIB", default_value_t = 256)]
    memory_mib: u64,

    /// MiB that the VM has touched before it is forked
    #[arg(long = "touched", value_name = "MIB", default_value_t = 200)]
    touched_mib: u64,

    /// Interrupt controllers: kernel or split
    #[arg(long, value_name = "KIND", default_value_t)]
    irqchip: IrqchipKind,

    #[command(flatten)]
    only: Only<Part>,

    /// Write the result to docs/benchmarks-density.md
    #[arg(long)]
    write_docs: bool,
}

/// Parts of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    Alive,
    Processes,
    Sequence,
    Spawned,
}

fn main() -> ExitCode {
    command_line::run(run)
}

fn run(options: &Options) -> Result<()> {
    if options.touched_mib + 16 > options.memory_mib {
        return Err(format!("--touched {}: more than the VM has", options.touched_mib));
    }
    let scratch = Scratch::new()?;
    let mut document = Document::default();
    document.say(&format!(
        "# Resources of forks on the host\n\n\
         The benchmark itself writes this page (`--write-docs`). {}\n\
         The host has {} MiB of memory. The VM has {} MiB and one vCPU, has touched {} MiB of them, and \
         sleeps; irqchip: {}.\n",
        circumstances("density", &command_line::given(), host::load()),
        held::host_mib()?,
        options.memory_mib,
        options.touched_mib,
        options.irqchip,
    ));
    let wants = |part| options.only.has(&part);
    if wants(Part::Alive) || wants(Part::Processes) {
        let mut table = alive::table();
        // Processes first: what this one has had, it keeps.
        if wants(Part::Processes) {
            processes::alive(options, &scratch, &mut table)?;
        }
        if wants(Part::Alive) {
            alive::measure(options, &scratch, &mut table)?;
        }
        document.say(&format!("## Alive at once\n\n{}\n\n{table}", alive::ABOUT));
    }
    if wants(Part::Sequence) || wants(Part::Spawned) {
        let mut table = sequence::table();
        if wants(Part::Sequence) {
            sequence::measure(options, &scratch, &mut table)?;
        }
        if wants(Part::Spawned) {
            processes::in_sequence(options, &scratch, &mut table)?;
        }
        document.say(&format!("## In sequence\n\n{}\n\n{table}", sequence::ABOUT));
    }
    if options.write_docs { document.write(DOCUMENT) } else { Ok(()) }
}
