//! How small packed memory is and how fast. See [`Options`].
//!
//! `chunks` measures sizes and decoding, `speed` packing, the index (of `large`) and checksums.

mod chunks;
mod large;
mod options;
mod speed;

use std::process::ExitCode;

use options::{Options, Part, ROUNDS};
use volt_benches::document::{Document, circumstances};
use volt_benches::{Result, command_line, host, process};

const DOCUMENT: &str = "docs/benchmarks-pack.md";

/// The same as in the binary `volt-vmm`.
#[global_allocator]
static HEAP: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    command_line::run(run)
}

fn run(options: &Options) -> Result<()> {
    let of_memory = &options.of_memory;
    let memory = of_memory.memory()?;
    // Afterwards, for it may have been made just now.
    let load = host::load();
    if of_memory.realtime {
        process::go_first()?;
    }
    let mut document = Document::default();
    let mut say = |part: &str| document.say(part);
    say(&format!(
        "# Packed memory\n\nThe benchmark itself writes this page (`--write-docs`). {}\n{}\n",
        circumstances("pack", &command_line::given(), load),
        of_memory.about(&memory),
    ));
    if options.only.has(&Part::Chunks) {
        say("## Chunk sizes\n\nThe size is of the file with its index, beside `zstd -3` over the whole \
            memory file. The ratio counts pages that are not zero. Times are of one thread that reads a \
            chunk from the page cache, decodes and verifies it, all chunks in random order; raw has no \
            codec. Repeats are chunks that are stored only once.\n");
        say(&chunks::measure(&memory, of_memory)?.to_string());
    }
    if options.only.has(&Part::Packing) {
        say("## Packing\n\nOnly chunks that are not zero, on all cores, into a file in memory.\n");
        say(&speed::packing(&memory, of_memory)?.to_string());
    }
    if options.only.has(&Part::Index) {
        say("## The index of 16 GiB\n\nEvery chunk of it is stored.\n");
        say(&speed::index(of_memory.rounds(ROUNDS))?.to_string());
    }
    if options.only.has(&Part::Checksums) {
        say("## Checksums\n");
        say(&speed::checksums(&memory, of_memory.rounds(ROUNDS)).to_string());
    }
    if of_memory.write_docs { document.write(DOCUMENT) } else { Ok(()) }
}
