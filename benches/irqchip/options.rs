//! Options of the benchmark.

use clap::Parser;
use volt_benches::command_line::Turns;
use volt_vmm::IrqchipKind;

/// Measures the cost of making and closing VMs, with the kernel's interrupt controllers and with split ones.
#[derive(Debug, Parser)]
#[command(
    args_override_self = true,
    name = "irqchip",
    bin_name = "cargo bench -p volt-benches --bench irqchip --"
)]
#[command(after_help = "Run it on an idle machine.")]
pub struct Options {
    /// Runs of each measurement
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub runs: usize,

    /// Numbers of vCPUs, separated by commas
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        action = clap::ArgAction::Set,
        default_values_t = [1, 2, 4]
    )]
    pub vcpus: Vec<u8>,

    /// Number of VMs that are closed at once
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub vms: usize,

    /// Runs of closing many VMs at once
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub crowd_runs: usize,

    #[command(flatten)]
    pub turns: Turns,

    /// Write the result to docs/benchmarks-irqchip.md
    #[arg(long)]
    pub write_docs: bool,

    /// Hold one VM of a crowd, for the benchmark itself
    #[arg(long, value_name = "KIND", hide = true)]
    pub one_of_many: Option<IrqchipKind>,
}

/// The option that makes a process hold one VM of a crowd.
pub const ONE_OF_MANY: &str = "--one-of-many";
