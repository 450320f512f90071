//! The network of a VM from end to end: backends, without a policy and with one, beside QEMU microvm's. See
//! [`Options`].
//!
//! ```text
//!  guest ── device ── backend ── host's network ── cable ── servers beyond the host
//! ```
//!
//! `backends` boots one guest for each backend, which takes the orders of `workload`. `servers` is the other
//! side. `report` makes the tables.

mod backends;
mod options;
mod report;
mod servers;
mod targets;
mod workload;

use std::path::PathBuf;
use std::process::ExitCode;

use backends::{Backend, Parts, Vm};
use options::Options;
use report::Row;
use volt_benches::document::{Document, circumstances, origin};
use volt_benches::scratch::Scratch;
use volt_benches::{Result, built, command_line, host, networks};
use workload::Workload;

const DOCUMENT: &str = "docs/benchmarks-network.md";
const DOCUMENT_OF_LAB: &str = "docs/benchmarks-network-lab.md";

fn main() -> ExitCode {
    command_line::run(run)
}

fn run(options: &Options) -> Result<()> {
    let load = host::load();
    let given = |path: &Option<PathBuf>, build: fn() -> Result<PathBuf>| path.clone().map_or_else(build, Ok);
    let volt_vmm = options.program.path()?;
    let (kernel, initrd) = (given(&options.kernel, built::kernel)?, given(&options.initrd, built::initrd)?);
    let beyond = networks::enter(&servers::addresses())?;
    servers::serve(&beyond)?;
    let scratch = Scratch::in_memory()?;
    let parts = Parts { volt_vmm, kernel, initrd, options, scratch: &scratch };
    let mut vms = Vec::new();
    for backend in Backend::ALL.into_iter().filter(|backend| options.only.has(backend)) {
        eprintln!("booting the guest behind {}", backend.name());
        vms.push(parts.boot(backend)?);
        vms[vms.len() - 1].stop(true)?;
    }
    let rows = measure(&mut vms, options)?;
    let mut document = Document::default();
    let (heading, page) = match std::env::var_os("VOLT_LAB") {
        None => ("# Network", DOCUMENT),
        Some(_) => ("# Network in the lab", DOCUMENT_OF_LAB),
    };
    document.say(&format!(
        "{heading}\n\n{} {}",
        origin("network"),
        circumstances("network", &command_line::given(), load)
    ));
    report::say(&mut document, options, &rows);
    for vm in vms.iter().filter(|vm| vm.resets != [0, 0]) {
        let (name, [off, on]) = (vm.backend.name(), vm.resets);
        document.say(&format!(
            "{name}: runs were repeated because a connection was reset, {off} without the policy and {on} \
             with it.\n"
        ));
    }
    if options.write_docs { document.write(page) } else { Ok(()) }
}

/// Measures all in turn.
fn measure(vms: &mut [Vm], options: &Options) -> Result<Vec<Row>> {
    let is_wanted = |workload: &Workload| workload.name().contains(&options.part_of_name);
    let rows_of = |vm: &Vm| -> Vec<Row> {
        let wanted = Workload::ALL.into_iter().filter(is_wanted);
        wanted.map(|workload| Row::new(vm.backend, workload)).collect()
    };
    let mut rows: Vec<_> = vms.iter().map(rows_of).collect();
    // A first round is for the caches of all, and does not count.
    for round in 0..=options.rounds {
        eprintln!("round {round} of {}", options.rounds);
        for (vm, rows) in vms.iter_mut().zip(&mut rows) {
            vm.stop(false)?;
            for row in rows {
                let turns: &[bool] = match (vm.backend.has_policy(), round % 2) {
                    (false, _) => &[false],
                    (true, 0) => &[false, true],
                    (true, _) => &[true, false],
                };
                for &has_policy in turns {
                    let sample = row.workload.run(vm, has_policy, options.ms)?;
                    if round > 0 {
                        row.samples[usize::from(has_policy)].push(sample);
                    }
                }
            }
            vm.stop(true)?;
        }
    }
    Ok(rows.into_iter().flatten().collect())
}
