//! Cost of touching packed memory that is unpacked on touch. See [`options::help`].
//!
//! `measured` touches, and says what that took; `charts` sets it against how small the memory gets.
#![allow(unsafe_code)]

mod charts;
mod measured;
mod options;

use std::process::ExitCode;

use charts::Charts;
use measured::Measured;
use options::Options;
use volt_benches::document::{Document, circumstances};
use volt_benches::{OrSay, Result, command_line, host, process};

const DOCUMENT: &str = "docs/benchmarks-lazy.md";

/// The same as in the binary `volt-vmm`.
#[global_allocator]
static HEAP: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    command_line::run(run)
}

fn run(options: &Options) -> Result<()> {
    let Options { of_memory, cpu } = options;
    let memory = of_memory.memory()?;
    // Afterwards, for it may have been made just now.
    let load = host::load();
    stay_on(*cpu)?;
    if of_memory.realtime {
        process::go_first()?;
    }
    let mut document = Document::default();
    document.say(&format!(
        "# Packed memory, unpacked as it is touched\n\n\
         The benchmark itself writes this page (`--write-docs`). {}\n{} \
         All runs on one core: the thread that touches and the thread that answers take turns. Every \
         chunk that is not zero is touched once, in random order.\n",
        circumstances("lazy", &command_line::given(), load),
        of_memory.about(&memory),
    ));
    let (mut first, mut later, mut charts) = (measured::first(), measured::later(), Charts::default());
    for chunk_len in of_memory.chunk_lens() {
        eprintln!("measuring chunks of {} KiB", chunk_len >> 10);
        let measured = Measured::of(&memory, chunk_len, of_memory)?;
        measured.report(&mut first, &mut later);
        charts.add(&measured);
    }
    document.say("## Chunk size, ratio and latency\n");
    document.say(&charts.to_string());
    document.say(
        "## The first touch\n\nThe floor is the same fault, answered from memory that is unpacked already.\n",
    );
    document.say(&first.to_string());
    document.say(
        "## The touch of another VM\n\nThe base is filled, and mapped once more with a userfaultfd of \
        its own. *Usual* is the same file, mapped with `MAP_PRIVATE` and nothing else.\n",
    );
    document.say(&later.to_string());
    if of_memory.write_docs { document.write(DOCUMENT) } else { Ok(()) }
}

/// This thread and those it starts.
fn stay_on(cpu: usize) -> Result<()> {
    // SAFETY: the set is initialised as zeroes, which is the empty set, and only read by the call.
    let done = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set)
    };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()).or_say("stay on one core") }
}
