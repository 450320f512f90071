//! Options of the benchmark.

use volt_benches::Result;
use volt_benches::command_line::{number, numbers, options};
use volt_vmm::IrqchipKind;

pub const HELP: &str = "\
Measures what VMs cost to make and to close, with the kernel's irqchip and with a split one.

cargo bench -p volt-benches --bench irqchip [-- OPTION...]

  --runs N          runs of each (default 100)
  --vcpus LIST      numbers of vCPUs (default 1,2,4)
  --vms N           how many VMs are closed at once (default 1000)
  --crowd-runs N    how often that is done (default 5)
  --pause MS        between two runs (default 5)
  --realtime        what is made one at a time goes before all other programs (SCHED_FIFO, for root)
  --write-docs      put the result in docs/benchmarks-irqchip.md
  --help

Run it on a machine that does nothing else.";

/// Purpose of this process.
#[derive(Debug, PartialEq, Eq)]
pub enum Do {
    Measure,
    /// To hold one VM of a crowd.
    OneOfMany(IrqchipKind),
}

/// See [`HELP`].
#[derive(Debug)]
pub struct Options {
    pub act: Do,
    pub runs: usize,
    pub vcpus: Vec<u8>,
    pub vms: usize,
    pub crowd_runs: usize,
    pub pause_ms: u64,
    pub realtime: bool,
    pub write_docs: bool,
    /// As given, for the record.
    pub line: String,
}

/// How a process of the crowd is told what it is.
pub const ONE_OF_MANY: &str = "--one-of-many";

impl Options {
    /// From the command line; nothing if help was asked for.
    ///
    /// # Errors
    /// An option that does not exist, or a value that makes no sense.
    pub fn parse(arguments: impl Iterator<Item = String>) -> Result<Option<Self>> {
        let mut asked = Self {
            act: Do::Measure,
            runs: 100,
            vcpus: vec![1, 2, 4],
            vms: 1000,
            crowd_runs: 5,
            pause_ms: 5,
            realtime: false,
            write_docs: false,
            line: String::new(),
        };
        let line = options(arguments, HELP, |option, value| {
            match option {
                "--runs" => asked.runs = number(&value()?)?,
                "--vcpus" => asked.vcpus = numbers(&value()?)?,
                "--vms" => asked.vms = number(&value()?)?,
                "--crowd-runs" => asked.crowd_runs = number(&value()?)?,
                "--pause" => asked.pause_ms = number(&value()?)?,
                "--realtime" => asked.realtime = true,
                "--write-docs" => asked.write_docs = true,
                ONE_OF_MANY => asked.act = Do::OneOfMany(value()?.parse()?),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(line.map(|line| Self { line, ..asked }))
    }
}
