//! VMs made and closed one at a time, by KVM's calls alone.

use std::thread;
use std::time::{Duration, Instant};

use kvm_ioctls::Kvm;
use volt_benches::stats::Times;
use volt_benches::{OrSay, Result};

use crate::machine::Machine;
use crate::rivals::{BOTH, Rivals};

/// Makes and closes VMs, the two kinds by turns.
///
/// # Errors
/// KVM refuses.
pub fn measure(vcpus: &[u8], runs: usize, pause: Duration) -> Result<Rivals> {
    let kvm = Kvm::new().or_say("open /dev/kvm")?;
    let mut rivals = Rivals::new("ms");
    let bare = vcpus.iter().map(|&vcpus| (vcpus, 0, format!("vCPUs: {vcpus}")));
    let with_devices =
        [1, 5].map(|ioeventfds| (1, ioeventfds, format!("vCPUs: 1, ioeventfds: {ioeventfds}")));
    for (vcpus, ioeventfds, shape) in bare.chain(with_devices) {
        let mut made = [Times::default(), Times::default()];
        let mut closed = made.clone();
        let mut both = made.clone();
        for _ in 0..runs {
            for (at, irqchip) in BOTH.into_iter().enumerate() {
                let start = Instant::now();
                let machine = Machine::make(&kvm, irqchip, vcpus, ioeventfds)?;
                let making = start.elapsed();
                drop(machine);
                let all = start.elapsed();
                made[at].add(making);
                closed[at].add(all - making);
                both[at].add(all);
                thread::sleep(pause);
            }
        }
        rivals.add(&format!("make, {shape}"), &made);
        rivals.add(&format!("close, {shape}"), &closed);
        rivals.add(&format!("make and close, {shape}"), &both);
    }
    Ok(rivals)
}
