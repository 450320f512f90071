//! Options of the benchmark.

use clap::{Parser, ValueEnum};
use volt_benches::command_line::{Only, Program, Turns};

/// Measures the time of a restore, beside the floor: the same KVM calls alone.
#[derive(Debug, Parser)]
#[command(
    args_override_self = true,
    name = "restore",
    bin_name = "cargo bench -p volt-benches --bench restore --"
)]
#[command(after_help = "Run it on an idle machine, or with --realtime. In the lab: benches/lab.sh")]
pub struct Options {
    /// Runs of each measurement
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub runs: usize,

    /// Guest memory in MiB, separated by commas
    #[arg(
        long = "memory",
        value_name = "LIST",
        value_delimiter = ',',
        action = clap::ArgAction::Set,
        default_values_t = [64, 256, 1024, 4096, 16_384]
    )]
    pub memory_mib: Vec<u64>,

    #[command(flatten)]
    pub only: Only<Part>,

    /// Runs of QEMU microvm with the least memory; 0 omits it
    #[arg(long, value_name = "N", default_value_t = 15)]
    pub qemu_runs: usize,

    #[command(flatten)]
    pub program: Program,

    #[command(flatten)]
    pub turns: Turns,

    /// Write the result to docs/benchmarks.md
    #[arg(long)]
    pub write_docs: bool,
}

/// Parts of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    Whole,
    Confinement,
    Devices,
    Generation,
    Isolation,
    Library,
    Resident,
}
