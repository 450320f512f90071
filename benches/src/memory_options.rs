//! Options of the benchmarks of packed memory.

use std::path::PathBuf;

use clap::Args;

use crate::guest_memory::Memory;
use crate::{Result, built};

/// Options of all benchmarks of packed memory.
#[derive(Args, Clone, Debug)]
pub struct MemoryOptions {
    /// Guest memory: the memory.snap of a snapshot (default: of a Linux guest that ran Python and a build,
    /// which scripts/memory-image.sh makes)
    #[arg(long, value_name = "FILE")]
    memory: Option<PathBuf>,

    /// Rounds of each measurement
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,

    /// Chunk sizes in KiB, separated by commas
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        action = clap::ArgAction::Set,
        default_values_t = [4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048]
    )]
    chunks: Vec<u32>,

    /// Give the measured programs priority over all others (SCHED_FIFO, as root), for a busy machine
    #[arg(long)]
    pub realtime: bool,

    /// Write the result to the document of this benchmark
    #[arg(long)]
    pub write_docs: bool,
}

impl MemoryOptions {
    /// The number of rounds, `usual` without an option.
    #[must_use]
    pub fn rounds(&self, usual: usize) -> usize {
        self.rounds.unwrap_or(usual)
    }

    /// The chunk sizes in bytes.
    #[must_use]
    pub fn chunk_lens(&self) -> Vec<u32> {
        self.chunks.iter().map(|kib| kib.saturating_mul(1024)).collect()
    }

    /// Reads the memory, which may have to be made first.
    ///
    /// # Errors
    /// The memory cannot be read or made.
    pub fn memory(&self) -> Result<Memory> {
        let usual = || built::memory_image().map(|snapshot| snapshot.join("memory.snap"));
        Memory::read(self.memory.clone().map_or_else(usual, Ok)?)
    }

    /// Describes the memory in sentences.
    #[must_use]
    pub fn about(&self, memory: &Memory) -> String {
        let whose = if self.memory.is_some() {
            ""
        } else {
            ", of a Linux guest that ran Python and a build (`scripts/memory-image.sh`)"
        };
        let (all, touched) = (memory.bytes.len() >> 20, memory.touched() >> 20);
        format!("The memory is {all} MiB{whose}; {touched} MiB are in pages that are not zero.")
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct BenchOptions {
        #[command(flatten)]
        of_memory: MemoryOptions,
    }

    fn parse(line: &str) -> MemoryOptions {
        BenchOptions::try_parse_from(["bench"].into_iter().chain(line.split_whitespace())).unwrap().of_memory
    }

    #[test]
    fn options_override_the_usual_rounds_and_chunks() {
        let options = parse("--memory m --chunks 4,64");
        assert_eq!((options.rounds(7), options.chunk_lens()), (7, vec![4096, 65_536]));
        assert_eq!(options.memory, Some("m".into()));
        let options = parse("--rounds 3");
        assert_eq!((options.rounds(7), options.chunk_lens().len(), options.memory), (3, 10, None));
    }
}
