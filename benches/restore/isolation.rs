//! Cost of a base of a VM's own: restores of raw memory without holes, shared and with `--isolate-base`.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use volt_benches::scratch::Scratch;
use volt_benches::stats::percentiles;
use volt_benches::table::Table;
use volt_benches::{OrSay, Result, snapshots};

use crate::contender::{self, Contender};

/// Guest memory in MiB.
const SIZES: [u64; 2] = [64, 1024];
/// Bytes written at once.
const STEP: usize = 1 << 20;
const PAGE: usize = 4096;

/// Measures the whole process, a run of each in turn.
///
/// # Errors
/// volt-vmm fails.
pub fn measure(volt_vmm: &Path, scratch: &Scratch, runs: usize, pause: Duration) -> Result<Table> {
    let mut contenders = Vec::new();
    for mib in SIZES {
        let dir = snapshots::by_volt_vmm(volt_vmm, scratch, &format!("full-{mib}"), mib, &[])?;
        fill(&dir.join("memory.snap"))?;
        for (name, options) in [("shared", &[][..]), ("--isolate-base", &["--isolate-base"])] {
            let mut command = Command::new(volt_vmm);
            command.arg("restore").arg(&dir).args(options);
            contenders.push(Contender::new(&format!("{name}, {mib} MiB"), command, runs));
        }
    }
    contender::run_in_turn(&mut contenders, pause)?;
    let mut table = Table::new(&["exec to first guest byte, ms", "runs", "min", "p50", "p90", "p99"]);
    for Contender { name, times, .. } in &contenders {
        table.row([name.clone(), times.len().to_string()].into_iter().chain(percentiles(times)));
    }
    Ok(table)
}

/// Fills the memory that the guest has not touched, so that a copy of it finds no hole. A restore does not
/// verify raw memory.
fn fill(memory: &Path) -> Result<()> {
    fs::set_permissions(memory, Permissions::from_mode(0o600)).or_say("allow writes to a snapshot")?;
    let file = File::options().read(true).write(true).open(memory).or_say("open the memory")?;
    let len = file.metadata().or_say("look at the memory")?.len();
    let mut bytes = vec![0; STEP];
    for at in (0..len).step_by(STEP) {
        let step = &mut bytes[..STEP.min((len - at) as usize)];
        file.read_exact_at(step, at).or_say("read the memory")?;
        let untouched = step.chunks_mut(PAGE).filter(|page| page.iter().all(|byte| *byte == 0));
        untouched.for_each(|page| page.fill(1));
        file.write_all_at(step, at).or_say("fill the memory")?;
    }
    file.sync_all().or_say("sync the memory")
}
