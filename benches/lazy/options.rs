//! Options of the benchmark.

use volt_benches::Result;
use volt_benches::command_line::number;
use volt_benches::memory_options::{self, MemoryOptions};

const ABOUT: &str = "\
Measures the cost of touching packed memory that is unpacked on touch: the first touch of a chunk, beside the
same fill from unpacked memory; and the touch of a chunk that another VM has touched, beside a page cache that
is mapped as usual. All runs are on one core, with all contenders in each of 10 rounds, or of --rounds.

cargo bench -p volt-benches --bench lazy [-- OPTION...]

  --cpu N           the core (default 0)
";

/// See [`help`].
#[derive(Debug)]
pub struct Options {
    pub of_memory: MemoryOptions,
    pub cpu: usize,
}

/// Text of `--help`.
pub fn help() -> String {
    format!("{ABOUT}{}", memory_options::HELP)
}

impl Options {
    /// From the command line; nothing if help was asked for.
    ///
    /// # Errors
    /// An option that does not exist, or a value that makes no sense.
    pub fn parse(arguments: impl Iterator<Item = String>) -> Result<Option<Self>> {
        let mut cpu = 0;
        let of_memory = MemoryOptions::parse(arguments, &help(), 10, &mut |option, value| {
            if option == "--cpu" {
                cpu = number(&value()?)?;
            }
            Ok(option == "--cpu")
        })?;
        Ok(of_memory.map(|of_memory| Self { of_memory, cpu }))
    }
}
