//! How small packed memory is and how fast. See [`options::HELP`].
//!
//! `memory` is what is packed, `chunks` measures sizes and decoding, `speed` packing, the index and checksums.

mod chunks;
mod memory;
mod options;
mod speed;

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use memory::Memory;
use options::Options;
use volt_benches::{OrSay, Result, command_line, host, process};

const DOCUMENT: &str = "../docs/benchmarks-pack.md";

/// The same as in the binary `volt-vmm`.
#[global_allocator]
static HEAP: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    command_line::run("pack", options::HELP, Options::parse, run)
}

fn run(options: &Options) -> Result<()> {
    let load = host::load();
    let memory = Memory::read(&options.memory)?;
    if options.realtime {
        process::go_first()?;
    }
    let mut text = String::new();
    let mut say = |part: &str| {
        println!("{part}");
        let _ = writeln!(text, "{part}");
    };
    say(&format!(
        "# Packed memory\n\nWritten by the benchmark itself (`--write-docs`). {}, {} CPUs; Linux {}; load average at the start {load:.1}.\n\n\
         ```sh\ncargo bench -p volt-benches --bench pack -- {}\n```\n\nThe memory is {} MiB, of which {} MiB are in pages that are not zero.\n",
        host::cpu(),
        host::cpus(),
        host::kernel(),
        options.line,
        memory.bytes.len() >> 20,
        memory.touched() >> 20,
    ));
    if options.measures("chunks") {
        say(
            "## Chunk sizes\n\nThe file with its index, beside `zstd -3` over the whole memory file; the ratio is of pages that are not zero. \
             Times are of one thread that reads a chunk from the page cache, decodes and verifies it, all chunks in random order; raw is \
             what is left without a codec. Repeats are chunks that are stored once only.\n",
        );
        say(&chunks::measure(&memory, options)?.to_string());
    }
    if options.measures("packing") {
        say("## Packing\n\nOf chunks that are not zero, on all cores, into a file in memory.\n");
        say(&speed::packing(&memory, options)?.to_string());
    }
    if options.measures("index") {
        say("## The index of 16 GiB\n\nEvery chunk of it is stored.\n");
        say(&speed::index(options)?.to_string());
    }
    if options.measures("checksums") {
        say("## Checksums\n");
        say(&speed::checksums(&memory, options).to_string());
    }
    if options.write_docs {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(DOCUMENT);
        std::fs::write(&path, text.trim_end().to_owned() + "\n").or_say("write docs/benchmarks-pack.md")?;
    }
    Ok(())
}
