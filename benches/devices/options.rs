//! Options of the benchmark.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use volt_benches::command_line::Only;

/// Measures the virtio devices of a Linux guest under volt-vmm, beside the same guest under QEMU microvm.
///
/// Needs a KVM that runs Linux, root (for tap devices) and qemu-system-x86_64.
#[derive(Debug, Parser)]
#[command(
    args_override_self = true,
    name = "devices",
    bin_name = "cargo bench -p volt-benches --bench devices --"
)]
#[command(after_help = "In the lab: benches/lab.sh devices")]
pub struct Options {
    /// Runs of each measurement under each VMM, in turn
    #[arg(long, value_name = "N", default_value_t = 7)]
    pub rounds: usize,

    /// Duration of each run by the guest's clock, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 500)]
    pub ms: u64,

    #[command(flatten)]
    pub only: Only<Part>,

    /// Measure only workloads whose names contain this text, such as "random read"
    #[arg(long = "match", value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub part_of_name: String,

    /// Program to measure (default: built from this tree)
    #[arg(long, value_name = "FILE")]
    pub volt_vmm: Option<PathBuf>,

    /// Guest kernel, an uncompressed vmlinux (default: built by kernel/build.sh)
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,

    /// Initrd of the guest (default: built by kernel/guest/build.sh)
    #[arg(long, value_name = "FILE")]
    pub initrd: Option<PathBuf>,

    /// Directory for disk images (default: the system's temporary directory)
    #[arg(long, value_name = "DIRECTORY")]
    pub images: Option<PathBuf>,

    /// Serve QEMU's disks on a thread of their own instead of its main loop
    #[arg(long)]
    pub qemu_iothread: bool,
}

/// Parts of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    Disk,
    Net,
    Vsock,
}
