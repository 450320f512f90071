//! Options of the benchmark.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use volt_benches::command_line::Only;

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

    /// Program to measure (default: built from this tree)
    #[arg(long, value_name = "FILE")]
    pub volt_vmm: Option<PathBuf>,

    /// Pause between two runs in milliseconds
    #[arg(long = "pause", value_name = "MS", default_value_t = 5)]
    pub pause_ms: u64,

    /// Give all that is measured priority over other programs (SCHED_FIFO, as root), for a busy machine
    #[arg(long)]
    pub realtime: bool,

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
