//! Options of the benchmark.

use clap::{Parser, ValueEnum};
use volt_benches::command_line::{Only, Program, Turns};

/// Measures the API from exec to its first answer, its answers, and restores through Firecracker's requests.
#[derive(Debug, Parser)]
#[command(
    args_override_self = true,
    name = "faces",
    bin_name = "cargo bench -p volt-benches --bench faces --"
)]
#[command(after_help = "Run it on an idle machine, or with --realtime.")]
pub struct Options {
    /// Starts and restores of each kind
    #[arg(long, value_name = "N", default_value_t = 100)]
    runs: usize,

    /// Requests of each kind
    #[arg(long, value_name = "N", default_value_t = 5000)]
    requests: usize,

    /// Take few runs (20) and requests (500)
    #[arg(long)]
    quick: bool,

    #[command(flatten)]
    pub only: Only<Part>,

    /// Guest memory in MiB
    #[arg(long = "memory", value_name = "MIB", default_value_t = 64)]
    pub memory_mib: u64,

    #[command(flatten)]
    pub program: Program,

    #[command(flatten)]
    pub turns: Turns,

    /// Write the result to docs/benchmarks-faces.md
    #[arg(long)]
    pub write_docs: bool,
}

/// Parts of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    Ready,
    Requests,
    Start,
    Load,
}

impl Options {
    pub fn runs(&self) -> usize {
        if self.quick { 20 } else { self.runs }
    }

    pub fn requests(&self) -> usize {
        if self.quick { 500 } else { self.requests }
    }
}
