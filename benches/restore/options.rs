//! What the benchmark is asked for.

use std::path::PathBuf;

use volt_benches::Result;
use volt_benches::command_line::number;

pub const HELP: &str = "\
Measures how long a restore takes, beside the floor: the same KVM calls and nothing else.

cargo bench -p volt-benches --bench restore [-- OPTION...]

  --runs N          runs of each (default 100)
  --memory LIST     guest memory in MiB (default 128,512,4096)
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
    pub only: Vec<String>,
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
        // cargo bench adds the first.
        let given: Vec<_> = arguments.filter(|argument| argument != "--bench").collect();
        let mut options = Self {
            runs: 100,
            memory_mib: vec![128, 512, 4096],
            only: ["whole", "devices", "library", "resident"].map(str::to_owned).into(),
            qemu_runs: 15,
            volt_vmm: None,
            pause_ms: 5,
            realtime: false,
            write_docs: false,
            line: given.join(" "),
        };
        let mut given = given.into_iter();
        while let Some(option) = given.next() {
            let mut value = || given.next().ok_or_else(|| format!("{option} takes a value"));
            match option.as_str() {
                "--runs" => options.runs = number(&value()?)?,
                "--memory" => {
                    options.memory_mib = value()?.split(',').map(number).collect::<Result<_>>()?;
                }
                "--only" => options.only = value()?.split(',').map(str::to_owned).collect(),
                "--qemu-runs" => options.qemu_runs = number(&value()?)?,
                "--volt-vmm" => options.volt_vmm = Some(value()?.into()),
                "--pause" => options.pause_ms = number(&value()?)?,
                "--realtime" => options.realtime = true,
                "--write-docs" => options.write_docs = true,
                "--help" => return Ok(None),
                _ => return Err(format!("{option}: no such option\n\n{HELP}")),
            }
        }
        Ok(Some(options))
    }

    /// Whether a part is to be measured.
    pub fn measures(&self, part: &str) -> bool {
        self.only.iter().any(|only| only == part)
    }
}
