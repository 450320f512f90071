//! Many VMs closed at once: each in a process of its own, as volt-vmm's are, and all in one, as an
//! embedder's may be.

use std::env;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use kvm_ioctls::Kvm;
use volt_benches::machine::Machine;
use volt_benches::stats::Times;
use volt_benches::{OrSay, Result, limits};
use volt_vmm::IrqchipKind;

use crate::MIB;
use crate::options::ONE_OF_MANY;
use crate::rivals::{BOTH, Rivals};

/// Descriptors beside those of the VMs.
const OTHER_DESCRIPTORS: u64 = 100;

/// Closes `vms` VMs at once, `runs` times, the two kinds by turns.
///
/// # Errors
/// The host has no room for so many.
pub fn measure(vms: usize, runs: usize) -> Result<Rivals> {
    // A VM has a descriptor, and so has its vCPU.
    limits::allow_descriptors(2 * vms as u64 + OTHER_DESCRIPTORS)?;
    let mut rivals = Rivals::new("ms");
    for (name, close) in [("processes", processes as fn(_, _) -> _), ("threads of one process", threads)] {
        let mut times = [Times::default(), Times::default()];
        for _ in 0..runs {
            for (irqchip, times) in BOTH.into_iter().zip(&mut times) {
                times.add(close(irqchip, vms)?);
            }
        }
        rivals.add(name, &times);
    }
    Ok(rivals)
}

/// Each VM in a process, all of which end when a pipe is closed.
fn processes(irqchip: IrqchipKind, vms: usize) -> Result<Duration> {
    let (wait, end) = io::pipe().or_say("make a pipe")?;
    let (mut ready, say) = io::pipe().or_say("make a pipe")?;
    let children = (0..vms).map(|_| one_of_many(irqchip, &wait, &say)).collect::<Result<Vec<_>>>()?;
    drop((wait, say));
    // Ends early if one of them fails, which it will have said.
    ready.read_exact(&mut vec![0; vms]).or_say("make as many VMs")?;
    let start = Instant::now();
    drop(end);
    for mut child in children {
        child.wait().or_say("wait for a process")?;
    }
    Ok(start.elapsed())
}

fn one_of_many(irqchip: IrqchipKind, wait: &PipeReader, say: &PipeWriter) -> Result<Child> {
    let mut command = Command::new(env::current_exe().or_say("find this program")?);
    command.args([ONE_OF_MANY, &irqchip.to_string()]);
    command.stdin(Stdio::from(wait.try_clone().or_say("duplicate a pipe")?));
    command.stdout(Stdio::from(say.try_clone().or_say("duplicate a pipe")?));
    command.spawn().or_say("start a process")
}

/// Runs such a process.
///
/// # Errors
/// It cannot make its VM.
pub fn be_one_of_many(irqchip: IrqchipKind) -> Result<()> {
    let machine = Machine::make(&Kvm::new().or_say("open /dev/kvm")?, MIB, irqchip, 1, 0)?;
    let mut stdout = io::stdout();
    stdout.write_all(b".").and_then(|()| stdout.flush()).or_say("say that it is ready")?;
    let _ = io::stdin().read(&mut [0]).or_say("wait")?;
    drop(machine);
    Ok(())
}

/// All in this process, each closed by a thread of its own.
fn threads(irqchip: IrqchipKind, vms: usize) -> Result<Duration> {
    let kvm = Kvm::new().or_say("open /dev/kvm")?;
    let machines = (0..vms).map(|_| Machine::make(&kvm, MIB, irqchip, 1, 0)).collect::<Result<Vec<_>>>()?;
    let barrier = Barrier::new(vms + 1);
    let start = thread::scope(|scope| {
        for machine in machines {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                drop(machine);
            });
        }
        barrier.wait();
        Instant::now()
    });
    Ok(start.elapsed())
}
