//! Options of the benchmark.

use std::path::PathBuf;

use volt_benches::Result;
use volt_benches::command_line::{Parts, number, numbers, options};

pub const HELP: &str = "\
Measures how long a restore takes, beside the floor: the same KVM calls and nothing else.

cargo bench -p volt-benches --bench restore [-- OPTION...]

  --runs N          runs of each (default 100)
  --memory LIST     guest memory in MiB (default 64,256,1024,4096,16384)
  --only LIST       of whole, devices, library, resident (default all)
  --qemu-runs N     runs of QEMU microvm at the smallest memory size (default 15; 0 leaves it out)
  --volt-vmm FILE   the program to measure (default: built from this tree)
  --pause MS        between two runs (default 5)
  --realtime        everything that is measured goes before all other programs (SCHED_FIFO, for root):
                    for a machine that does something else too
  --write-docs      put the result in docs/benchmarks.md
  --help

Run it on a machine that does nothing else, or with --realtime. In the lab: benches/lab.sh";

/// See [`HELP`].
#[derive(Debug)]
pub struct Options {
    pub runs: usize,
    pub memory_mib: Vec<u64>,
    pub only: Parts,
    pub qemu_runs: usize,
    pub volt_vmm: Option<PathBuf>,
    pub pause_ms: u64,
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
            runs: 100,
            memory_mib: vec![64, 256, 1024, 4096, 16_384],
            only: Parts::all(&["whole", "devices", "library", "resident"]),
            qemu_runs: 15,
            volt_vmm: None,
            pause_ms: 5,
            realtime: false,
            write_docs: false,
            line: String::new(),
        };
        let line = options(arguments, HELP, |option, value| {
            match option {
                "--runs" => asked.runs = number(&value()?)?,
                "--memory" => {
                    asked.memory_mib = numbers(&value()?)?;
                }
                "--only" => asked.only.choose(&value()?)?,
                "--qemu-runs" => asked.qemu_runs = number(&value()?)?,
                "--volt-vmm" => asked.volt_vmm = Some(value()?.into()),
                "--pause" => asked.pause_ms = number(&value()?)?,
                "--realtime" => asked.realtime = true,
                "--write-docs" => asked.write_docs = true,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(line.map(|line| Self { line, ..asked }))
    }
}
