//! Start and requests of the API, and restores through Firecracker's requests. See [`Options`].
//!
//! `ready`, `requests`, `loads` and `starts` measure, `programs` has the programs and `report` prints tables.

mod loads;
mod options;
mod programs;
mod ready;
mod report;
mod requests;
mod starts;

use std::process::ExitCode;

use options::{Options, Part};
use programs::Programs;
use report::Report;
use volt_benches::scratch::Scratch;
use volt_benches::{Result, command_line, host, process, snapshots};

/// The same as in the binary `volt-vmm`.
#[global_allocator]
static HEAP: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    command_line::run(run)
}

fn run(options: &Options) -> Result<()> {
    let load = host::load();
    let scratch = Scratch::new()?;
    let programs = Programs::new(&scratch, options.program.path()?)?;
    let (runs, pause) = (options.runs(), options.turns.pause());
    let has_snapshot = options.only.has(&Part::Load) || options.only.has(&Part::Start);
    let snapshot = has_snapshot
        .then(|| snapshots::in_both_forms(&programs.volt_vmm, &scratch, options.memory_mib))
        .transpose()?;
    if options.turns.realtime {
        process::go_first()?;
    }
    let mut report = Report::new(load, options.memory_mib);
    if options.only.has(&Part::Ready) {
        eprintln!("measuring the start of the API");
        report.ready(&ready::measure(&programs, runs, pause)?);
    }
    if options.only.has(&Part::Requests) {
        eprintln!("measuring requests");
        report.requests(&requests::measure(&programs, &scratch, options.requests())?);
    }
    if let Some(snapshot) = &snapshot {
        if options.only.has(&Part::Start) {
            eprintln!("measuring starts of a process with a load");
            report.starts(&starts::measure(&programs, snapshot, runs, pause)?);
        }
        if options.only.has(&Part::Load) {
            eprintln!("measuring loads");
            report.loads(&loads::measure(&programs, snapshot, runs, pause)?);
        }
    }
    report.targets();
    if options.write_docs { report.write() } else { Ok(()) }
}
