//! Options of the benchmark.

use clap::Parser;
use volt_benches::memory_options::MemoryOptions;

/// The usual number of rounds.
pub const ROUNDS: usize = 10;

/// Measures the cost of touching packed memory that is unpacked on touch.
///
/// The first touch of a chunk runs beside the same fill from unpacked memory. The touch of a chunk that
/// another VM has touched runs beside a page cache that is mapped as usual. All runs are on one core, with
/// all contenders in each of 10 rounds, or of --rounds.
#[derive(Debug, Parser)]
#[command(args_override_self = true, name = "lazy", bin_name = "cargo bench -p volt-benches --bench lazy --")]
#[command(after_help = "Run it on an idle machine.")]
pub struct Options {
    #[command(flatten)]
    pub of_memory: MemoryOptions,

    /// Number of the core
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub cpu: usize,
}
