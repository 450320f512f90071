//! How fast the virtio devices of a Linux guest are, beside QEMU microvm's. See [`Options`].
//!
//! `vms` boots the same guest under both, which takes the orders of `workload`. `counters` reads the host's
//! counters meanwhile. `report` writes the page.

mod counters;
mod options;
mod report;
mod vms;
mod workload;

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use counters::Counts;
use options::{Options, Part};
use report::Row;
use vms::{Parts, Vm};
use volt_benches::scratch::Scratch;
use volt_benches::{OrSay, Result, built, command_line, host, peer};
use workload::{Sample, Way, Workload};

fn main() -> ExitCode {
    command_line::run(run)
}

fn run(options: &Options) -> Result<()> {
    let given = |path: &Option<PathBuf>, build: fn() -> Result<PathBuf>| path.clone().map_or_else(build, Ok);
    let (volt_vmm, kernel) =
        (given(&options.volt_vmm, built::volt_vmm)?, given(&options.kernel, built::kernel)?);
    let initrd = given(&options.initrd, built::initrd)?;
    let able = Command::new(&volt_vmm).args(["doctor", "--can-run-linux"]).stdout(Stdio::null()).status();
    if !able.or_say(&format!("run {}", volt_vmm.display()))?.success() {
        return Err("this host's KVM cannot run Linux guests; run benches/lab.sh devices instead".to_owned());
    }
    let images = options.images.clone().unwrap_or_else(std::env::temp_dir);
    let parts = Parts {
        volt_vmm: &volt_vmm,
        kernel: &kernel,
        initrd: &initrd,
        images: &images,
        qemu_iothread: options.qemu_iothread,
    };
    let scratch = Scratch::new()?;
    let load = host::load();
    eprintln!("booting the guests");
    let mut volt = parts.boot_volt(&scratch)?;
    let mut qemu = parts.boot_qemu()?;
    report::print_heading(options, load);
    let both = Workload::of_both(options);
    if !both.is_empty() {
        let rows = measure_both(both, &mut volt, &mut qemu, options)?;
        report::print_speed("beside QEMU microvm", "QEMU", &rows);
        println!("Time of single operations:\n");
        report::print_times("microseconds", &rows);
        println!("Cost of an operation (for TCP, of 64 KiB) on the host:\n");
        report::print_counts("per operation", &rows);
    }
    drop(qemu);
    if options.only.has(&Part::Vsock) {
        let rows = measure_vsock(&mut volt, options)?;
        report::print_speed("beside a copy through a unix socket", "unix socket", &rows);
    }
    Ok(())
}

/// Each workload in turn, first under the one, then under the other.
fn measure_both(
    workloads: Vec<Workload>,
    volt: &mut Vm,
    qemu: &mut Vm,
    options: &Options,
) -> Result<Vec<Row>> {
    let row = |workload| Row { workload, volt: Vec::new(), other: Vec::new() };
    let mut rows: Vec<_> = workloads.into_iter().map(row).collect();
    for row in &rows {
        // Once for the caches of all.
        row.workload.run(volt, options.ms / 4)?;
        row.workload.run(qemu, options.ms / 4)?;
    }
    for round in 0..options.rounds {
        eprintln!("round {} of {}", round + 1, options.rounds);
        for Row { workload, volt: of_volt, other } in &mut rows {
            // Neither always runs behind the same one.
            if round % 2 == 0 {
                of_volt.push(workload.run(volt, options.ms)?);
                other.push(workload.run(qemu, options.ms)?);
            } else {
                other.push(workload.run(qemu, options.ms)?);
                of_volt.push(workload.run(volt, options.ms)?);
            }
        }
    }
    Ok(rows)
}

/// vsock, which QEMU has only with the host kernel's help, beside what goes through a unix socket without a
/// guest.
fn measure_vsock(volt: &mut Vm, options: &Options) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for way in [Way::Send, Way::Receive] {
        let mut row = Row { workload: Workload::Vsock(way), volt: Vec::new(), other: Vec::new() };
        for _ in 0..options.rounds {
            row.volt.push(row.workload.run(volt, options.ms)?);
            let measured = peer::unix_copy(options.ms).or_say("copy through a unix socket")?;
            row.other.push(Sample { measured, counts: Counts::default() });
        }
        rows.push(row);
    }
    Ok(rows)
}
