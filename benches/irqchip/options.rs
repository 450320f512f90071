//! What the benchmark is asked for.

use volt_benches::Result;
use volt_benches::command_line::number;
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
  --help

Run it on a machine that does nothing else.";

/// What this process is for.
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
}

/// How a process of the crowd is told what it is.
pub const ONE_OF_MANY: &str = "--one-of-many";

impl Options {
    /// From the command line; nothing if help was asked for.
    ///
    /// # Errors
    /// An option that does not exist, or a value that makes no sense.
    pub fn parse(arguments: impl Iterator<Item = String>) -> Result<Option<Self>> {
        // cargo bench adds the first.
        let mut given = arguments.filter(|argument| argument != "--bench");
        let mut options = Self {
            act: Do::Measure,
            runs: 100,
            vcpus: vec![1, 2, 4],
            vms: 1000,
            crowd_runs: 5,
            pause_ms: 5,
            realtime: false,
        };
        while let Some(option) = given.next() {
            let mut value = || given.next().ok_or_else(|| format!("{option} takes a value"));
            match option.as_str() {
                "--runs" => options.runs = number(&value()?)?,
                "--vcpus" => options.vcpus = value()?.split(',').map(number).collect::<Result<_>>()?,
                "--vms" => options.vms = number(&value()?)?,
                "--crowd-runs" => options.crowd_runs = number(&value()?)?,
                "--pause" => options.pause_ms = number(&value()?)?,
                "--realtime" => options.realtime = true,
                ONE_OF_MANY => options.act = Do::OneOfMany(value()?.parse()?),
                "--help" => return Ok(None),
                _ => return Err(format!("{option}: no such option\n\n{HELP}")),
            }
        }
        Ok(Some(options))
    }
}
