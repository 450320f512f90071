//! Options of the benchmark.

use volt_benches::Result;
use volt_benches::command_line::Parts;
use volt_benches::memory_options::{self, MemoryOptions};

const ABOUT: &str = "\
Measures packed memory: its size and the time to decode a chunk, by chunk size and codec; the speed of
packing, beside the codec alone on the same cores; and the cost of a large memory's index. The best of 5
rounds counts, or of --rounds.

cargo bench -p volt-benches --bench pack [-- OPTION...]

  --only LIST       of chunks, packing, index, checksums (default all)
";

/// See [`help`].
#[derive(Debug)]
pub struct Options {
    pub of_memory: MemoryOptions,
    pub only: Parts,
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
        let mut only = Parts::all(&["chunks", "packing", "index", "checksums"]);
        let of_memory = MemoryOptions::parse(arguments, &help(), 5, &mut |option, value| {
            if option == "--only" {
                only.choose(&value()?)?;
            }
            Ok(option == "--only")
        })?;
        Ok(of_memory.map(|of_memory| Self { of_memory, only }))
    }
}
