//! What the benchmark is asked for.

use std::path::PathBuf;

use volt_benches::Result;
use volt_benches::command_line::{number, numbers, options};

pub const HELP: &str = "\
Measures what it costs to touch packed memory that is unpacked as it is touched: the first touch of a chunk, beside the same fill
from memory that is unpacked already; and the touch of a chunk that another VM has touched, beside a page cache that is mapped as
usual. All on one core.

cargo bench -p volt-benches --bench lazy -- --memory FILE [OPTION...]

  --memory FILE     the memory of a guest: the memory.snap of a snapshot of a Linux that has done something
  --rounds N        rounds of each measurement, all contenders in each (default 10)
  --chunks LIST     sizes of chunks in KiB (default 32,64,128)
  --cpu N           the core (default 0)
  --realtime        what is measured goes before all other programs (SCHED_FIFO, for root): for a machine that does something else
                    too
  --write-docs      put the result in docs/benchmarks-lazy.md
  --help

Run it on a machine that does nothing else.";

/// See [`HELP`].
#[derive(Debug)]
pub struct Options {
    pub memory: PathBuf,
    pub rounds: usize,
    /// Bytes.
    pub chunks: Vec<u32>,
    pub cpu: usize,
    pub realtime: bool,
    pub write_docs: bool,
    /// As given, for the record.
    pub line: String,
}

impl Options {
    /// From the command line; nothing if help was asked for.
    ///
    /// # Errors
    /// An option that does not exist, or a value that makes no sense.
    pub fn parse(arguments: impl Iterator<Item = String>) -> Result<Option<Self>> {
        let mut asked = Self {
            memory: PathBuf::new(),
            rounds: 10,
            chunks: [32, 64, 128].map(|kib| kib << 10).into(),
            cpu: 0,
            realtime: false,
            write_docs: false,
            line: String::new(),
        };
        let line = options(arguments, HELP, |option, value| {
            match option {
                "--memory" => asked.memory = value()?.into(),
                "--rounds" => asked.rounds = number(&value()?)?,
                "--chunks" => {
                    let kib = numbers::<u32>(&value()?)?;
                    asked.chunks = kib.into_iter().map(|kib| kib.saturating_mul(1024)).collect();
                }
                "--cpu" => asked.cpu = number(&value()?)?,
                "--realtime" => asked.realtime = true,
                "--write-docs" => asked.write_docs = true,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        if line.is_some() && asked.memory.as_os_str().is_empty() {
            return Err(format!("--memory FILE is needed\n\n{HELP}"));
        }
        Ok(line.map(|line| Self { line, ..asked }))
    }
}
