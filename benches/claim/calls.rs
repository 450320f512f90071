//! System calls of the agent, counted in the guest by ptrace (benches/programs/calls.c).

use std::fs;
use std::os::unix::fs::PermissionsExt;

use syscalls::Sysno;
use volt_benches::scratch::Scratch;
use volt_benches::table::Table;
use volt_benches::{OrSay, Result};

use crate::vms::{CHILD, QUIET, RUNNING, Vms};

/// The program that counts.
const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/calls"));
/// Its place in the guest, and that of its counts, which are in memory.
const IN_GUEST: &str = "/calls";
const COUNTS: &str = "/dev/shm/counts";
const ABOUT: &str = "System calls of the agent, all its threads counted, by ptrace. The command is `cat`, \
which prints the counts so far: each number is the difference between two prints. It covers the end of the \
first command and the start of the second.";
/// Calls that are named. The rest is summed up.
const NAMED: usize = 12;

/// Counts by the numbers of calls.
type Counts = Vec<u64>;

/// The table of calls.
pub fn of(vms: &Vms, scratch: &Scratch) -> Result<String> {
    let program = scratch.path("calls");
    fs::write(&program, PROGRAM).or_say("write the program that counts calls")?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).or_say("make it executable")?;
    vms.to_end(["cp", &program.display().to_string(), &format!("{RUNNING}:{IN_GUEST}")])?;
    vms.to_end(["exec", RUNNING, IN_GUEST, COUNTS])?;
    // The first command after the start of the count ends what began before it.
    counts(vms, RUNNING)?;
    let before = counts(vms, RUNNING)?;
    let after = counts(vms, RUNNING)?;
    let exec = difference(&after, &before);
    vms.fork(&QUIET, RUNNING)?;
    let in_child = counts(vms, CHILD)?;
    let fork = difference(&in_child, &after);
    vms.to_end(["rm", "--force", CHILD])?;

    let mut order: Vec<_> = (0..fork.len()).filter(|number| fork[*number] + exec[*number] > 0).collect();
    order.sort_by_key(|number| std::cmp::Reverse((fork[*number], *number)));
    let mut table = Table::new(&["system calls of the agent", "fork and exec", "exec"]);
    let mut row = |name: &str, of: &dyn Fn(&Counts) -> u64| {
        table.row([name.to_owned(), of(&fork).to_string(), of(&exec).to_string()]);
    };
    row("all", &|counts| counts.iter().sum());
    let (named, others) = order.split_at(NAMED.min(order.len()));
    for &number in named {
        let name = Sysno::new(number).map_or_else(|| number.to_string(), |call| call.name().to_owned());
        row(&format!("`{name}`"), &|counts| counts[number]);
    }
    row("others", &|counts| others.iter().map(|number| counts[*number]).sum());
    Ok(format!("{ABOUT}\n\n{table}"))
}

fn difference(after: &Counts, before: &Counts) -> Counts {
    after.iter().zip(before).map(|(after, before)| after.saturating_sub(*before)).collect()
}

/// Reads the counts by a command.
fn counts(vms: &Vms, vm: &str) -> Result<Counts> {
    let bytes = vms.bytes(["exec", vm, "cat", COUNTS])?;
    let counts: Counts = bytes.as_chunks().0.iter().map(|count| u64::from_ne_bytes(*count)).collect();
    if counts.iter().sum::<u64>() == 0 {
        Err("no system call of the agent is counted".to_owned())
    } else {
        Ok(counts)
    }
}
