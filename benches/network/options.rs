//! Options of the benchmark.

use std::path::PathBuf;

use clap::Parser;
use volt_benches::command_line::{Only, Program};

use crate::backends::Backend;

/// Measures the network of a Linux guest by its backend, without a policy and with one, beside QEMU microvm.
///
/// Needs a KVM that runs Linux, root, the programs ip, passt and qemu-system-x86_64, and the kernel's modules
/// tun, veth and nf_tables.
#[derive(Debug, Parser)]
#[command(
    args_override_self = true,
    name = "network",
    bin_name = "cargo bench -p volt-benches --bench network --"
)]
#[command(after_help = "Run it on an idle machine. In the lab: benches/lab.sh network")]
pub struct Options {
    /// Rounds, each with one run without and one with a policy of each measurement
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub rounds: usize,

    /// Duration of each run by the guest's clock, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 500)]
    pub ms: u64,

    #[command(flatten)]
    pub only: Only<Backend>,

    /// Measure only workloads whose names contain this text, such as "round trip"
    #[arg(long = "match", value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub part_of_name: String,

    #[command(flatten)]
    pub program: Program,

    /// Guest kernel, an uncompressed vmlinux [default: built by kernel/build.sh]
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,

    /// Initrd of the guest [default: built by kernel/guest/build.sh]
    #[arg(long, value_name = "FILE")]
    pub initrd: Option<PathBuf>,

    /// Kernel command line of the guest
    #[arg(long, value_name = "TEXT", default_value = "console=ttyS0 reboot=k panic=-1 quiet")]
    pub cmdline: String,

    /// A word more for each VM of volt-vmm, such as --vcpus=2. Repeatable
    #[arg(long = "option", value_name = "WORD", allow_hyphen_values = true)]
    pub options: Vec<String>,

    /// Processor of QEMU's VMs
    #[arg(long, value_name = "MODEL", default_value = "host,arch-capabilities=off")]
    pub qemu_cpu: String,

    /// Write the result to docs/benchmarks-network.md, in the lab to docs/benchmarks-network-lab.md
    #[arg(long)]
    pub write_docs: bool,
}
