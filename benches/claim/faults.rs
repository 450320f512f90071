//! Page faults of guests that the host's KVM handled, where debugfs is mounted.

use std::fs;

use volt_benches::Result;
use volt_benches::page_faults::{self, counted};
use volt_benches::table::Table;

use crate::vms::{RUNNING, Vms};

/// The second-stage page faults that KVM took for all VMs that live.
const TAKEN: &str = "/sys/kernel/debug/kvm/pf_taken";
const ABOUT: &str = "Page faults that the host's KVM took from the call to the end of the command \
(`pf_taken`). The VM of a warm start runs `sleep` as its main process, and then the \
command by `exec`: it still lives when its faults are counted. Each row is the fewest \
of three.";
/// Counts of each row.
const COUNTS: usize = 3;

/// The table of faults. Absent where KVM's counts are not shown.
pub fn of(vms: &Vms) -> Result<Option<String>> {
    if taken().is_none() {
        return Ok(None);
    }
    let mut table = Table::new(&["from the call to the command's end", "page faults", "share of the first"]);
    vms.run(&[])?;
    let ahead = fewest(|| vms.in_warm_vm(exec_counted(vms)))?;
    let bare = fewest(|| {
        vms.forget_working_sets()?;
        vms.in_warm_vm(exec_counted(vms))
    })?;
    let forked = fewest(|| vms.in_child(exec_counted(vms)))?;
    let running = fewest(|| exec_counted(vms)(RUNNING, taken().unwrap_or(0)))?;
    let rows = [
        ("warm start without a working set", bare),
        ("warm start", ahead),
        ("`fork --quiesce`, in the child and its parent", forked),
        ("`exec` in a VM that has run for a while", running),
    ];
    for (name, count) in rows {
        table.row([name.to_owned(), count.to_string(), format!("{:.2}", count as f64 / bare as f64)]);
    }
    let causes = by_cause(vms)?.map_or_else(String::new, |causes| format!("\n{causes}"));
    Ok(Some(format!("{ABOUT}\n\n{table}{causes}")))
}

/// The table of causes, if the host traces page faults.
fn by_cause(vms: &Vms) -> Result<Option<String>> {
    let exec = |vm: &str, _| vms.exec(vm).map(drop);
    // It leaves the working set.
    vms.run(&[])?;
    let ahead = counted(|| vms.in_warm_vm(exec))?;
    let bare = counted(|| {
        vms.forget_working_sets()?;
        vms.in_warm_vm(exec)
    })?;
    let forked = counted(|| vms.in_child(exec))?;
    let running = counted(|| exec(RUNNING, 0))?;
    let (Some(bare), Some(ahead), Some(forked), Some(running)) = (bare, ahead, forked, running) else {
        return Ok(None);
    };
    let acts =
        [("warm, without a working set", bare), ("warm", ahead), ("fork", forked), ("`exec`", running)];
    Ok(Some(page_faults::table(&acts)))
}

fn fewest(mut count: impl FnMut() -> Result<u64>) -> Result<u64> {
    let counts = (0..COUNTS).map(|_| count()).collect::<Result<Vec<_>>>()?;
    Ok(counts.into_iter().min().unwrap_or(0))
}

/// Runs the command in a VM, and counts the faults since there were so many.
fn exec_counted(vms: &Vms) -> impl FnOnce(&str, u64) -> Result<u64> {
    |vm, before| {
        vms.exec(vm)?;
        Ok(taken().unwrap_or(0).saturating_sub(before))
    }
}

/// The count of all VMs.
pub fn taken() -> Option<u64> {
    fs::read_to_string(TAKEN).ok()?.trim().parse().ok()
}
