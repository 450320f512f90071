//! The reason why a vCPU cannot go on, and what it means for its guest.
//!
//! The filter of a vCPU's thread forbids the calls that tell the state of the guest and of its memory. The
//! thread that waits for the guest's end makes them.

use std::sync::{Arc, Mutex};

use crate::kvm::vcpu::Vcpu;
use crate::machine::board::Board;
use crate::memory::ram::GuestRam;
use crate::run_control::Ending;
use crate::sync::lock;

/// The reason why a vCPU cannot go on.
#[derive(Debug)]
pub enum Stop {
    /// The guest ended in this way.
    Guest(Ending),
    /// KVM could not access guest memory, at this guest physical address if it tells one.
    Unreadable(Option<u64>),
    /// Another error, for the message.
    Failed(String),
}

impl Stop {
    /// Ends the guest of vCPU `id` for this reason.
    pub fn end_guest(self, id: u8, vcpu: &Arc<Mutex<Vcpu>>, board: &Board) {
        if let Self::Guest(ending @ (Ending::Poweroff | Ending::Reboot)) = self {
            return board.control.end(Ok(ending));
        }
        let (vcpu, ram) = (Arc::clone(vcpu), board.ram.clone());
        board.control.end_examined(move || {
            let vcpu = lock(&vcpu);
            self.examine(&vcpu, &ram).map_err(|why| format!("vCPU {id}{}: {why}", vcpu.location()))
        });
    }

    /// Tells how the guest ended, or describes its crash.
    fn examine(self, vcpu: &Vcpu, ram: &GuestRam) -> Result<Ending, String> {
        match self {
            Self::Guest(Ending::TripleFault) => after_triple_fault(vcpu, ram),
            Self::Guest(ending) => Ok(ending),
            Self::Unreadable(address) => Err(unreadable(address, ram)),
            Self::Failed(why) => Err(why),
        }
    }
}

/// Distinguishes a guest's own triple fault from the loss of its page tables, descriptor tables or stack. On
/// lost memory kvm_pvm injects a page fault, and other KVM modules fail `KVM_RUN` with EFAULT.
fn after_triple_fault(vcpu: &Vcpu, ram: &GuestRam) -> Result<Ending, String> {
    if ram.is_truncated() {
        return Err(unreadable(None, ram));
    }
    // Lazily filled memory reports its own failures.
    if ram.faults().is_some() {
        return Ok(Ending::TripleFault);
    }
    let is_lost = |address: &u64| ram.contains(*address) && !ram.is_readable(*address);
    match vcpu.needed_by_exceptions().into_iter().find(is_lost) {
        Some(address) => Err(unreadable(Some(address), ram)),
        None => Ok(Ending::TripleFault),
    }
}

/// Describes why KVM cannot access memory, as far as this process knows.
fn unreadable(address: Option<u64>, ram: &GuestRam) -> String {
    let what = address.map_or_else(String::new, |address| format!(" at {address:#x}"));
    let what = format!("guest memory{what} cannot be accessed");
    let file = ram.file_name();
    let file = file.display();
    if let Some(why) = ram.faults().and_then(|faults| faults.failure()) {
        format!("{what}: {why}")
    } else if ram.is_truncated() {
        format!("{what}: {file} is gone or too short")
    } else {
        format!(
            "{what}: I/O error in {file} or its diff, or no memory on the host; see the host's kernel log"
        )
    }
}
