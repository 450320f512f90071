//! VMs made and closed one at a time, by KVM's calls alone.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use kvm_ioctls::Kvm;
use volt_benches::machine::Machine;
use volt_benches::stats::Times;
use volt_benches::{OrSay, Result};

use crate::MIB;
use crate::rivals::{BOTH, Rivals};

/// How long a VM lives that is not closed as soon as it is made: long enough for what its making left behind
/// to be over.
const LIFE: Duration = Duration::from_millis(100);

/// A VM, and how long it lives.
struct VmShape {
    vcpus: u8,
    ioeventfds: u64,
    life: Duration,
}

impl fmt::Display for VmShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vcpus, ioeventfds, life } = self;
        write!(f, "vCPUs: {vcpus}, ioeventfds: {ioeventfds}")?;
        if life.is_zero() { Ok(()) } else { write!(f, ", after {} ms", life.as_millis()) }
    }
}

/// Makes and closes VMs, the two kinds by turns.
///
/// # Errors
/// KVM refuses.
pub fn measure(vcpus: &[u8], runs: usize, pause: Duration) -> Result<Rivals> {
    let kvm = Kvm::new().or_say("open /dev/kvm")?;
    let mut rivals = Rivals::new("ms");
    let at_once = Duration::ZERO;
    let bare = vcpus.iter().map(|&vcpus| VmShape { vcpus, ioeventfds: 0, life: at_once });
    let others = [(1, at_once), (5, at_once), (0, LIFE), (1, LIFE), (5, LIFE)];
    let others = others.map(|(ioeventfds, life)| VmShape { vcpus: 1, ioeventfds, life });
    for shape in bare.chain(others) {
        let mut made = [Times::default(), Times::default()];
        let mut closed = made.clone();
        for _ in 0..runs {
            for (at, irqchip) in BOTH.into_iter().enumerate() {
                let start = Instant::now();
                let machine = Machine::make(&kvm, MIB, irqchip, shape.vcpus, shape.ioeventfds)?;
                made[at].add(start.elapsed());
                thread::sleep(shape.life);
                let start = Instant::now();
                drop(machine);
                closed[at].add(start.elapsed());
                thread::sleep(pause);
            }
        }
        if shape.life.is_zero() {
            rivals.add(&format!("make, {shape}"), &made);
        }
        rivals.add(&format!("close, {shape}"), &closed);
    }
    Ok(rivals)
}
