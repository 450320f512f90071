//! Many forks alive at once in one process, as an embedder's may be.

use kvm_ioctls::Kvm;
use volt_benches::machine::Machine;
use volt_benches::scratch::Scratch;
use volt_benches::table::Table;
use volt_benches::{OrSay, Result, limits};

use crate::Options;
use crate::guest::Guest;
use volt_benches::held::{Host, More, Process};

pub const ABOUT: &str = "Each figure is the difference between a host with the VMs and without them, \
divided by their number. *Unique user memory* is memory that no other process maps (`Private_*` and \
`Swap` of `smaps_rollup`), the VMM's own included. *Kernel* is the slab, kernel stacks, page tables, \
vmalloc and per-CPU memory of /proc/meminfo. *Taken* is the memory that is no longer available. Every \
VM has run, and in one process each has answered. The floor is an empty VM of the same size, by KVM's \
calls alone.";

/// Descriptors of a VM, its console and its share of all else.
const DESCRIPTORS: u64 = 8;

pub fn table() -> Table {
    Table::new(&["KiB each", "alive", "unique user memory", "kernel", "taken"])
}

/// A row of the table.
pub fn row(name: &str, count: usize, unique_kib: i64, more: More) -> [String; 5] {
    let each = |kib: i64| format!("{:.0}", kib as f64 / count as f64);
    [name.to_owned(), count.to_string(), each(unique_kib), each(more.kernel), each(more.taken)]
}

/// Measures empty VMs, and forks.
///
/// # Errors
/// The host has no room for so many.
pub fn measure(options: &Options, scratch: &Scratch, table: &mut Table) -> Result<()> {
    limits::allow_descriptors(options.alive as u64 * DESCRIPTORS)?;
    let kvm = Kvm::new().or_say("open /dev/kvm")?;
    let make = || Machine::make(&kvm, options.memory_mib, options.irqchip, 1, 0);
    table.row(of_many("floor: empty VMs in one process", options.alive, make, |_| Ok(()))?);
    let parent = Guest::boot(options, scratch)?;
    // The first fork freezes the parent's memory, which the others find frozen.
    parent.fork()?.answers()?;
    table.row(of_many("forks in one process", options.alive, || parent.fork(), Guest::answers)?);
    parent.answers()
}

fn of_many<T>(
    name: &str,
    count: usize,
    make: impl Fn() -> Result<T>,
    lives: impl Fn(&T) -> Result<()>,
) -> Result<[String; 5]> {
    let unique = || Ok::<_, String>(Process::this()?.unique_kib.cast_signed());
    let (host, before) = (Host::now()?, unique()?);
    let all = (0..count).map(|_| make()).collect::<Result<Vec<_>>>()?;
    all.iter().try_for_each(lives)?;
    Ok(row(name, count, unique()? - before, Host::now()?.since(host)))
}
