//! Requests a second that the metadata service answers. See [`Options`].
//!
//! A small guest sends the frames by a TCP of its own, one request at a time, and polls for the answers.

mod guest;

use std::process::ExitCode;

use clap::Parser;
use guest::{Guest, Way};
use serde_json::json;
use volt_benches::document::{Document, circumstances};
use volt_benches::scratch::Scratch;
use volt_benches::stats::Times;
use volt_benches::table::Table;
use volt_benches::{Result, command_line, host};

const DOCUMENT: &str = "docs/benchmarks-metadata.md";

/// The same as in the binary `volt-vmm`.
#[global_allocator]
static HEAP: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// Measures how many requests a second of one guest the metadata service answers.
#[derive(Debug, Parser)]
#[command(
    args_override_self = true,
    name = "metadata",
    bin_name = "cargo bench -p volt-benches --bench metadata --"
)]
#[command(after_help = "Run it on an idle machine, as root: the guest's interface is a tap.")]
struct Options {
    /// Requests of each round
    #[arg(long, value_name = "N", default_value_t = 2000)]
    requests: u64,

    /// Rounds of each measurement
    #[arg(long, value_name = "N", default_value_t = 10)]
    rounds: usize,

    /// Take few rounds (3) of few requests (500)
    #[arg(long)]
    quick: bool,

    /// Bytes of the value that the guest gets
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [5, 4096])]
    bytes: Vec<usize>,

    /// Write the result to docs/benchmarks-metadata.md
    #[arg(long)]
    write_docs: bool,
}

fn main() -> ExitCode {
    command_line::run(run)
}

fn run(options: &Options) -> Result<()> {
    let load = host::load();
    let scratch = Scratch::new()?;
    let (requests, rounds) = if options.quick { (500, 3) } else { (options.requests, options.rounds) };
    let guest = Guest::boot(requests, &scratch)?;
    let mut table = Table::new(&["requests a second", "rounds", "slowest", "p50", "fastest"]);
    for (way, name) in
        [(Way::Connections, "a connection for each request"), (Way::KeptAlive, "one connection")]
    {
        for bytes in &options.bytes {
            guest.store(&json!({"latest": {"user-data": "x".repeat(*bytes)}}))?;
            guest.measure(way)?; // once for the caches
            let times: Times =
                (0..rounds).map(|_| guest.measure(way)).collect::<Result<Vec<_>>>()?.into_iter().collect();
            let rate = |percent| format!("{:.0}", requests as f64 / times.percentile(percent).as_secs_f64());
            let name = format!("{name}, {bytes} bytes");
            table.row([name, rounds.to_string(), rate(100), rate(50), rate(0)]);
        }
    }
    let mut document = Document::default();
    document.say(&format!(
        "# Metadata service\n\nThe benchmark itself writes this page (`--write-docs`). {}",
        circumstances("metadata", &command_line::given(), load)
    ));
    document.say(&format!(
        "A small guest gets a value {} times in each round, one request after another, by a TCP of its own. \
         It polls for the answers. One vCPU and the thread of its network device are at work. A connection \
         of its own takes the guest thousands of instructions, which some KVMs emulate. The target, 1,000 \
         requests a second, is for requests over one connection.\n\n{table}",
        requests
    ));
    if options.write_docs { document.write(DOCUMENT) } else { Ok(()) }
}
