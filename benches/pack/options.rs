//! Options of the benchmark.

use clap::{Parser, ValueEnum};
use volt_benches::command_line::Only;
use volt_benches::memory_options::MemoryOptions;

/// The usual number of rounds.
pub const ROUNDS: usize = 5;

/// Measures packed memory.
///
/// It measures the size and the time to decode a chunk, by chunk size and codec. It measures the speed of
/// packing beside the codec alone on the same cores, and the cost of a large memory's index. The best of 5
/// rounds counts, or of --rounds.
#[derive(Debug, Parser)]
#[command(args_override_self = true, name = "pack", bin_name = "cargo bench -p volt-benches --bench pack --")]
#[command(after_help = "Run it on an idle machine.")]
pub struct Options {
    #[command(flatten)]
    pub of_memory: MemoryOptions,

    #[command(flatten)]
    pub only: Only<Part>,
}

/// Parts of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    Chunks,
    Packing,
    Index,
    Checksums,
}
