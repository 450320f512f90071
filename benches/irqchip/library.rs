//! What a user of the library sees: a snapshot restored, and its VM dropped.

use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use volt_benches::first_byte::FirstByte;
use volt_benches::scratch::Scratch;
use volt_benches::stats::Times;
use volt_benches::{OrSay, Result, programs};
use volt_vmm::{Console, IrqchipKind, RestoreOptions, Snapshot, Store, Vm};

use crate::rivals::{BOTH, Rivals};

/// How long a guest may take to its first byte.
const LIMIT: Duration = Duration::from_secs(10);

/// Restores and drops VMs, the two kinds by turns.
///
/// # Errors
/// A VM cannot be made.
pub fn measure(vcpus: &[u8], runs: usize, pause: Duration) -> Result<Rivals> {
    let scratch = Scratch::new()?;
    let mut rivals = Rivals::new("ms");
    for &vcpus in vcpus {
        let snapshots = [snapshot(&scratch, BOTH[0], vcpus)?, snapshot(&scratch, BOTH[1], vcpus)?];
        let mut restored = [Times::default(), Times::default()];
        let mut dropped = restored.clone();
        for _ in 0..runs {
            for (at, snapshot) in snapshots.iter().enumerate() {
                let (console, first) = first_byte();
                let start = Instant::now();
                let vm = snapshot.restore_with(RestoreOptions { console, ..Default::default() });
                let vm = vm.or_say("restore a snapshot")?;
                restored[at].add(first.recv_timeout(LIMIT).or_say("hear from the guest")? - start);
                let start = Instant::now();
                drop(vm);
                dropped[at].add(start.elapsed());
                thread::sleep(pause);
            }
        }
        rivals.add(&format!("restore, vCPUs: {vcpus}"), &restored);
        rivals.add(&format!("drop, vCPUs: {vcpus}"), &dropped);
    }
    Ok(rivals)
}

fn first_byte() -> (Console, Receiver<Instant>) {
    let (told, first) = channel();
    (Console::to(FirstByte::new(told)), first)
}

/// A snapshot of the bench guest, which writes one byte after another.
fn snapshot(scratch: &Scratch, irqchip: IrqchipKind, vcpus: u8) -> Result<Snapshot> {
    let kernel = scratch.program("chatter", programs::CHATTER)?;
    let (store, name) =
        Store::split(&scratch.path(&format!("{irqchip}-{vcpus}"))).or_say("open the store")?;
    let (console, first) = first_byte();
    let builder =
        Vm::builder().kernel(&kernel).irqchip(irqchip).vcpus(vcpus).memory_mib(128).console(console);
    let vm = builder.start().or_say("boot the bench guest")?;
    first.recv_timeout(LIMIT).or_say("hear from the guest")?;
    vm.snapshot(&store, &name).or_say("take a snapshot")?;
    Snapshot::open(&store, &name).or_say("open the snapshot")
}
