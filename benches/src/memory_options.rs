//! What benchmarks of packed memory are asked for.

use std::path::PathBuf;

use crate::Result;
use crate::command_line::{number, numbers, options};

/// The lines of a benchmark's help.
pub const HELP: &str = "  --memory FILE     the memory of a guest: the memory.snap of a snapshot of a Linux that has done something
                    (scripts/memory-image.sh makes one)
  --rounds N        rounds of each measurement
  --chunks LIST     sizes of chunks in KiB (default 4,8,16,32,64,128,256,512,1024,2048)
  --realtime        what is measured goes before all other programs (SCHED_FIFO, for root): for a machine that does something else
                    too
  --write-docs      put the result in the document of this benchmark
  --help

Run it on a machine that does nothing else.";

/// See the module.
#[derive(Clone, Debug)]
pub struct MemoryOptions {
    /// The file.
    pub memory: PathBuf,
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
    /// From the command line, `rounds` if that does not say how many; nothing if help was asked for. `more` takes what is the benchmark's
    /// own.
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
            memory: PathBuf::new(),
            rounds,
            chunks: (2..=11).map(|log| 1024 << log).collect(),
            realtime: false,
            write_docs: false,
            line: String::new(),
        };
        let line = options(arguments, help, |option, value| {
            match option {
                "--memory" => asked.memory = value()?.into(),
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
        if line.is_some() && asked.memory.as_os_str().is_empty() {
            return Err(format!("--memory FILE is needed\n\n{help}"));
        }
        Ok(line.map(|line| Self { line, ..asked }))
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
    fn a_memory_is_needed_and_the_rest_is_not() {
        let asked = read("--memory m --own --chunks 4,64").unwrap().unwrap();
        assert_eq!((asked.rounds, asked.chunks), (7, vec![4096, 65_536]));
        assert_eq!(asked.line, "--memory m --own --chunks 4,64");
        assert!(read("--rounds 3").unwrap_err().starts_with("--memory FILE is needed"));
        assert!(read("--memory m --other").unwrap_err().contains("no such option"));
        assert!(read("--help").unwrap().is_none());
    }
}
