//! Options of the benchmarks of packed memory.

use std::path::PathBuf;

use crate::command_line::{number, numbers, options};
use crate::guest_memory::Memory;
use crate::{Result, built};

/// The lines of a benchmark's help.
pub const HELP: &str = "  \
  --memory FILE     the memory of a guest: the memory.snap of a snapshot (default: of a Linux that ran
                    Python and a build, which scripts/memory-image.sh makes)
  --rounds N        rounds of each measurement
  --chunks LIST     sizes of chunks in KiB (default 4,8,16,32,64,128,256,512,1024,2048)
  --realtime        the measured programs go before all others (SCHED_FIFO, for root): for a machine that
                    does something else too
  --write-docs      put the result in the document of this benchmark
  --help

Run it on a machine that does nothing else.";

/// See the module.
#[derive(Clone, Debug)]
pub struct MemoryOptions {
    /// The file, if it is not the usual one.
    memory: Option<PathBuf>,
    /// How often everything is measured.
    pub rounds: usize,
    /// Bytes of a chunk, of each size.
    pub chunks: Vec<u32>,
    /// Whether to go before all others.
    pub realtime: bool,
    /// Whether to write a document.
    pub write_docs: bool,
    /// As given, for the record.
    pub line: String,
}

/// Takes an option of the benchmark's own; says whether there is such a one.
pub type More<'t> = &'t mut dyn FnMut(&str, &mut dyn FnMut() -> Result<String>) -> Result<bool>;

impl MemoryOptions {
    /// From the command line, `rounds` if that does not say how many; nothing if help was asked for. `more`
    /// takes what is the benchmark's own.
    ///
    /// # Errors
    /// An option that does not exist, or a value that makes no sense.
    pub fn parse(
        arguments: impl Iterator<Item = String>,
        help: &str,
        rounds: usize,
        more: More<'_>,
    ) -> Result<Option<Self>> {
        let mut asked = Self {
            memory: None,
            rounds,
            chunks: (2..=11).map(|log| 1024 << log).collect(),
            realtime: false,
            write_docs: false,
            line: String::new(),
        };
        let line = options(arguments, help, |option, value| {
            match option {
                "--memory" => asked.memory = Some(value()?.into()),
                "--rounds" => asked.rounds = number(&value()?)?,
                "--chunks" => {
                    let kib = numbers::<u32>(&value()?)?;
                    asked.chunks = kib.into_iter().map(|kib| kib.saturating_mul(1024)).collect();
                }
                "--realtime" => asked.realtime = true,
                "--write-docs" => asked.write_docs = true,
                _ => return more(option, value),
            }
            Ok(true)
        })?;
        Ok(line.map(|line| Self { line, ..asked }))
    }

    /// Reads the memory, which may have to be made first.
    ///
    /// # Errors
    /// It cannot be.
    pub fn memory(&self) -> Result<Memory> {
        let usual = || built::memory_image().map(|snapshot| snapshot.join("memory.snap"));
        Memory::read(self.memory.clone().map_or_else(usual, Ok)?)
    }

    /// Whose memory it is and how much of it there is, as sentences.
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
    use super::*;

    fn read(line: &str) -> Result<Option<MemoryOptions>> {
        let words = line.split_whitespace().map(str::to_owned);
        MemoryOptions::parse(words, "the help", 7, &mut |option, _| Ok(option == "--own"))
    }

    #[test]
    fn what_all_have_and_what_is_a_benchmark_s_own() {
        let asked = read("--memory m --own --chunks 4,64").unwrap().unwrap();
        assert_eq!((asked.rounds, asked.chunks), (7, vec![4096, 65_536]));
        assert_eq!(asked.line, "--memory m --own --chunks 4,64");
        assert_eq!(asked.memory, Some("m".into()));
        assert_eq!(read("--rounds 3").unwrap().unwrap().memory, None);
        assert!(read("--memory m --other").unwrap_err().contains("no such option"));
        assert!(read("--help").unwrap().is_none());
    }
}
