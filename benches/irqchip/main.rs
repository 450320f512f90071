//! Cost of the irqchip for an empty VM: made and closed one at a time, and a thousand closed at once. See
//! [`Options`].
//!
//! `single` and `crowd` measure VMs of KVM's calls alone, `library` what a user of volt-vmm sees of it.

mod crowd;
mod library;
mod options;
mod rivals;
mod single;

use std::process::ExitCode;

use options::Options;
use volt_benches::document::{Document, circumstances};
use volt_benches::{Result, command_line, host, process};

const DOCUMENT: &str = "docs/benchmarks-irqchip.md";

/// Memory of a VM.
const MIB: u64 = 128;

/// The same as in the binary `volt-vmm`.
#[global_allocator]
static HEAP: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    command_line::run(run)
}

fn run(options: &Options) -> Result<()> {
    if let Some(irqchip) = options.one_of_many {
        return crowd::be_one_of_many(irqchip);
    }
    let mut document = Document::default();
    document.say(&format!(
        "# Interrupt controllers\n\nThe benchmark itself writes this page (`--write-docs`). {}",
        circumstances("irqchip", &command_line::given(), host::load())
    ));
    let mut say = |title: &str, about: &str, found: &rivals::Rivals| {
        document.say(&format!("## {title}\n\n{about}\n\n{found}"))
    };
    let pause = options.turns.pause();
    // Before a thread or process of a crowd is started, which is not to be part of it.
    let crowds = crowd::measure(options.vms, options.crowd_runs)?;
    if options.turns.realtime {
        process::go_first()?;
    }
    let found = single::measure(&options.vcpus, options.runs, pause)?;
    say("Empty VMs", "One at a time, 128 MiB, by KVM's calls in volt-vmm's order.", &found);
    let found = library::measure(&options.vcpus, options.runs, pause)?;
    say(
        "The library",
        "`Snapshot::restore` until the first byte of its guest, and the drop of the `Vm`.",
        &found,
    );
    let about = format!("{} VMs of 1 vCPU, closed at once, until the last is gone.", options.vms);
    say("Many at once", &about, &crowds);
    if options.write_docs { document.write(DOCUMENT) } else { Ok(()) }
}
