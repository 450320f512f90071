//! Many VMs of one image: the host's page cache of its files, and the memory of the VMs. See [`Options`].

mod vms;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use volt_benches::command_line;
use volt_benches::document::{Document, circumstances, origin};
use volt_benches::held::{Host, host_mib};
use volt_benches::image_host::{ImageHost, ImageOptions};
use volt_benches::page_cache::{forget, length, resident};
use volt_benches::scratch::Scratch;
use volt_benches::stats::mib;
use volt_benches::table::Table;
use volt_benches::{Result, host};

use vms::Vms;

const DOCUMENT: &str = "docs/benchmarks-crowd.md";
/// Reads all files of Python's library, and prints their bytes.
const READ: &str = "import os; print(sum(len(open(os.path.join(d, f), 'rb').read()) \
for d, _, fs in os.walk(os.path.dirname(os.__file__)) for f in fs))";
const CACHE: &str = "Bytes of the image's files (layers and metadata) in the host's page cache (mincore). \
They were taken out of it before the first VM. Each file has one page cache for all VMs that read it.";
const MEMORY: &str = "Memory of all processes of the VMs, divided by the number of VMs (smaps_rollup). \
*Unique* is memory that one process maps (`Private_*` and `Swap`): all pages that the guest has written, and \
with them its page cache. *Pss* adds the process's share of pages that several map, such as those of the \
warm snapshot. *Taken* is the memory that is no longer available to the host, without its caches.";

/// The same as in the binary `volt-vmm`.
#[global_allocator]
static HEAP: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// Starts many VMs of one image, and measures the memory that they take.
#[derive(Debug, Parser)]
#[command(
    args_override_self = true,
    name = "crowd",
    bin_name = "cargo bench -p volt-benches --bench crowd --"
)]
struct Options {
    #[command(flatten)]
    image: ImageOptions,

    /// VMs at once
    #[arg(long, value_name = "N", default_value_t = 100)]
    count: usize,

    /// Pause VMs that have nothing to do, where their timers would keep the host's processors busy
    #[arg(long)]
    paused: bool,

    /// Write the result to docs/benchmarks-crowd.md
    #[arg(long)]
    write_docs: bool,

    /// A command that reads files of the image, and prints the same in each VM [default: python3 reads its
    /// library]
    #[arg(value_name = "COMMAND", trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

fn main() -> ExitCode {
    command_line::run(run)
}

fn run(options: &Options) -> Result<()> {
    let load = host::load();
    let scratch = Scratch::new()?;
    let host = ImageHost::new(&scratch, &options.image)?;
    let command = match &options.command[..] {
        [] => ["python3", "-c", READ].map(str::to_owned).to_vec(),
        given => given.to_vec(),
    };
    let files = host.image_files()?;
    let of_all = |bytes: fn(&std::path::Path) -> Result<u64>| {
        files.iter().map(|file: &PathBuf| bytes(file)).sum::<Result<u64>>()
    };
    let mut cache = Table::new(&["the image's files in the page cache", "MiB"]);
    let mut add = |moment: &str, bytes: u64| cache.row([moment.to_owned(), format!("{:.1}", mib(bytes))]);
    let mut vms = Vms::new(&host, &options.image, options.paused);
    vms.make_warm()?;
    files.iter().try_for_each(|file| forget(file))?;
    add("before the first VM", of_all(resident)?);

    let before = Host::now()?;
    vms.start(1)?;
    let said = vms.read(&command)?;
    add("the first VM has read", of_all(resident)?);
    vms.start(options.count)?;
    let mut memory = vms::table();
    vms.row("all run, one has read", before, &mut memory)?;
    if vms.read(&command)? != said {
        return Err("the VMs read different files".to_owned());
    }
    add(&format!("all {} VMs have read", options.count), of_all(resident)?);
    vms.row("all have read", before, &mut memory)?;
    add("size of all files", of_all(length)?);

    let mut document = Document::default();
    document.say(&format!(
        "# Many VMs of one image\n\n{} {}\n\
         {} VMs of one image run, each restored from the warm snapshot of the image. The host has {} MiB of \
         memory. In each VM a command reads files of the image. It must print the same in all: `{}`.\n\n\
         ## Page cache of the image\n\n{CACHE}\n\n{cache}\n## Memory of the VMs\n\n{MEMORY}\n\n{memory}",
        origin("crowd"),
        circumstances("crowd", &command_line::given(), load),
        options.count,
        host_mib()?,
        said.trim(),
    ));
    if options.write_docs { document.write(DOCUMENT) } else { Ok(()) }
}
