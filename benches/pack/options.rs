//! What the benchmark is asked for.

use std::path::PathBuf;

use volt_benches::Result;
use volt_benches::command_line::{names, number, numbers, options};

pub const HELP: &str = "\
Measures packed memory: how small it gets and how fast a chunk is decoded, by chunk size and codec; how fast memory is packed,
beside the codec alone on the same cores; and what the index of a large memory costs.

cargo bench -p volt-benches --bench pack -- --memory FILE [OPTION...]

  --memory FILE     the memory of a guest: the memory.snap of a snapshot of a Linux that has done something
  --rounds N        rounds of each measurement; the best one counts (default 5)
  --chunks LIST     sizes of chunks in KiB (default 4,8,16,32,64,128,256,512,1024,2048)
  --only LIST       of chunks, packing, index, checksums (default all)
  --realtime        everything that is measured goes before all other programs (SCHED_FIFO, for root): for a machine that
                    does something else too
  --write-docs      put the result in docs/benchmarks-pack.md
  --help

Run it on a machine that does nothing else.";

/// See [`HELP`].
#[derive(Debug)]
pub struct Options {
    pub memory: PathBuf,
    pub rounds: usize,
    /// Bytes.
    pub chunks: Vec<u32>,
    pub only: Vec<String>,
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
            rounds: 5,
            chunks: (2..=11).map(|log| 1024 << log).collect(),
            only: ["chunks", "packing", "index", "checksums"].map(str::to_owned).into(),
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
                "--only" => asked.only = names(&value()?),
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

    /// Whether a part is to be measured.
    pub fn measures(&self, part: &str) -> bool {
        self.only.iter().any(|only| only == part)
    }
}
