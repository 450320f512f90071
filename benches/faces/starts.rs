//! From exec to a restored guest's first byte: through Firecracker's requests, and by `--restore`.

use std::process::Command;
use std::time::Duration;

use volt_benches::Result;
use volt_benches::process::Running;
use volt_benches::snapshots::BothForms;
use volt_benches::turns::{Contender, Results, in_turn};

use crate::programs::{Program, Programs, first_byte, load_request};

/// Measures both.
///
/// # Errors
/// A guest does not start.
pub fn measure(programs: &Programs, snapshot: &BothForms, runs: usize, pause: Duration) -> Result<Results> {
    let load = load_request(snapshot);
    let mut restore = Command::new(&programs.volt_vmm);
    restore.arg("--restore").arg(&snapshot.dir);
    let loading = |name: &str, program| {
        let load = &load;
        Contender::new(name, move || {
            let mut serving = programs.start(program)?;
            serving.api.send(load)?;
            first_byte(&mut serving.running, &mut serving.api)?;
            Ok(serving.started.elapsed())
        })
    };
    let contenders = vec![
        Contender::new("volt-vmm --restore", || Running::timed(&mut restore).map(|(_, took)| took)),
        loading("firecracker --api-sock, then PUT /snapshot/load", Program::Firecracker),
        loading("volt-vmm --api-socket, then PUT /snapshot/load", Program::VoltVmm),
    ];
    in_turn(contenders, runs, pause)
}
