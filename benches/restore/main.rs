//! How long a restore takes, beside its floor. See [`Options`].
//!
//! `subject` makes the snapshots, `digest` turns one into what the floor (`programs/floor.c`) takes,
//! `whole`, `confinement`, `devices`, `generation`, `isolation`, `library` and `resident` measure, `report`
//! prints tables. `contender` and `worker` run programs in turn.

mod confinement;
mod contender;
mod devices;
mod digest;
mod floor;
mod generation;
mod isolation;
mod library;
mod options;
mod report;
mod resident;
mod subject;
mod whole;
mod worker;

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use options::{Options, Part};
use report::Report;
use subject::Subject;
use volt_benches::scratch::Scratch;
use volt_benches::{Result, command_line, host, process, programs, snapshots};

/// The same as in the binary `volt-vmm`.
#[global_allocator]
static HEAP: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    command_line::run(run)
}

fn run(options: &Options) -> Result<()> {
    let volt_vmm = options.program.path()?;
    let scratch = Scratch::new()?;
    let pause = options.turns.pause();
    eprintln!("making the snapshots");
    let make = |&mib: &u64| Subject::make(&volt_vmm, &scratch, mib);
    let subjects = options.memory_mib.iter().map(make).collect::<Result<Vec<_>>>()?;
    if options.turns.realtime {
        process::go_first()?;
    }
    let mut report = Report::new(host::load());
    if options.only.has(&Part::Whole) {
        let mib = options.memory_mib.iter().copied().min().unwrap_or(128);
        let qemu = if options.qemu_runs > 0 { qemu(&scratch, mib) } else { None };
        eprintln!("measuring the whole process");
        let qemu = qemu.as_ref().map(|saved| (options.qemu_runs, mib, saved));
        report.whole(&whole::measure(&subjects, &volt_vmm, &scratch, options.runs, qemu, pause)?);
    }
    if options.only.has(&Part::Confinement) {
        // Before the parts with threads: it forks this process.
        eprintln!("measuring what confinement costs");
        let cost = confinement::measure(&subjects, &volt_vmm, &scratch, options.runs, pause)?;
        report.confinement(&cost);
    }
    if options.only.has(&Part::Devices) {
        eprintln!("measuring what devices cost");
        report.devices(&devices::measure(&volt_vmm, &scratch, options.runs, pause)?);
    }
    if options.only.has(&Part::Generation) {
        eprintln!("measuring what a new generation costs");
        report.generation(&generation::measure(&volt_vmm, &scratch, options.runs, pause)?);
    }
    if options.only.has(&Part::Isolation) {
        eprintln!("measuring what a base of a VM's own costs");
        report.isolation(&isolation::measure(&volt_vmm, &scratch, options.runs, pause)?);
    }
    if options.only.has(&Part::Library) {
        eprintln!("measuring the library");
        let (totals, details) = library::measure(&subjects, options.runs, pause)?;
        report.library(&totals, &details);
    }
    if options.only.has(&Part::Resident) {
        let floor = scratch.program("floor", programs::FLOOR)?;
        let volt = |subject: &Subject| {
            let mut command = Command::new(&volt_vmm);
            command.arg("--restore").arg(&subject.dir);
            command
        };
        let floor = |subject: &Subject| {
            let mut command = Command::new(&floor);
            command.arg(&subject.digest_file).arg(subject.memory_file());
            command
        };
        report.resident(&resident::measure(&subjects, &[("floor", &floor), ("volt-vmm --restore", &volt)])?);
    }
    if options.write_docs { report.write() } else { Ok(()) }
}

/// A peer that is not there is left out, and that is said.
fn qemu(scratch: &Scratch, mib: u64) -> Option<(PathBuf, PathBuf)> {
    let saved = snapshots::by_qemu(scratch, mib);
    saved.inspect_err(|error| eprintln!("restore: QEMU is left out: {error}")).ok()
}
