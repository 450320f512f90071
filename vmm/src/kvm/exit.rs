//! Decodes the exits of `KVM_RUN`. The port I/O exits of kvm-ioctls lack the width of an access: a `rep
//! outsb` would look like one wide write.
#![allow(unsafe_code)]

use kvm_bindings as kvm;
use kvm_bindings::kvm_run;

/// An exit. The handler of a read fills `data`, which reaches the guest at the next entry.
#[derive(Debug)]
pub enum VmExit<'a> {
    /// `in`: `data` holds one or more accesses of `size` bytes, all from `port`.
    PioRead { port: u16, size: usize, data: &'a mut [u8] },
    /// `out`: `data` holds one or more accesses of `size` bytes, all to `port`.
    PioWrite { port: u16, size: usize, data: &'a [u8] },
    /// A load outside all memory slots.
    MmioRead { address: u64, data: &'a mut [u8] },
    /// A store outside all memory slots.
    MmioWrite { address: u64, data: &'a [u8] },
    /// The end of an interrupt with this vector, for an IOAPIC outside the kernel.
    EndOfInterrupt(u8),
    /// A signal or `immediate_exit` interrupted the vCPU.
    Interrupted,
    /// Triple fault.
    Shutdown,
    /// The guest asked the hypervisor for poweroff, reset or crash (`KVM_SYSTEM_EVENT_*`).
    SystemEvent(u32),
    /// Guest memory is unavailable, at this guest physical address if KVM names it (Linux 6.8,
    /// `KVM_EXIT_MEMORY_FAULT`).
    Unreadable(Option<u64>),
    /// KVM cannot continue this vCPU.
    Failed(String),
}

/// Returns the guest physical address at which `KVM_RUN` failed with EFAULT, if KVM names it.
pub(super) fn faulted_at(run: &kvm_run) -> Option<u64> {
    if run.exit_reason != kvm::KVM_EXIT_MEMORY_FAULT {
        return None;
    }
    // SAFETY: the exit reason tells which member of the union is set.
    Some(unsafe { run.__bindgen_anon_1.memory_fault }.gpa)
}

/// Decodes the exit in `run`, after `KVM_RUN` has returned.
///
/// # Safety
/// `run` must be the start of a vCPU's whole mapping of `KVM_GET_VCPU_MMAP_SIZE` bytes, and the vCPU must not
/// be running.
pub(super) unsafe fn decode(run: &mut kvm_run) -> VmExit<'_> {
    let base = std::ptr::from_mut(run).cast::<u8>();
    match run.exit_reason {
        kvm::KVM_EXIT_IO => {
            // SAFETY: the exit reason tells which member of the union is set.
            let io = unsafe { run.__bindgen_anon_1.io };
            let (size, port) = (usize::from(io.size), io.port);
            // SAFETY: KVM puts `count * size` bytes at `data_offset`, inside the mapping. It touches them
            // only while the vCPU runs, which the borrow of `run` excludes.
            let data = unsafe {
                std::slice::from_raw_parts_mut(base.add(io.data_offset as usize), io.count as usize * size)
            };
            if u32::from(io.direction) == kvm::KVM_EXIT_IO_IN {
                VmExit::PioRead { port, size, data }
            } else {
                VmExit::PioWrite { port, size, data }
            }
        }
        kvm::KVM_EXIT_MMIO => {
            // SAFETY: as above.
            let mmio = unsafe { &mut run.__bindgen_anon_1.mmio };
            let len = (mmio.len as usize).min(mmio.data.len());
            let (address, data) = (mmio.phys_addr, &mut mmio.data[..len]);
            if mmio.is_write == 0 {
                VmExit::MmioRead { address, data }
            } else {
                VmExit::MmioWrite { address, data }
            }
        }
        kvm::KVM_EXIT_IOAPIC_EOI => {
            // SAFETY: as above.
            let eoi = unsafe { run.__bindgen_anon_1.eoi };
            VmExit::EndOfInterrupt(eoi.vector)
        }
        kvm::KVM_EXIT_INTR => VmExit::Interrupted,
        kvm::KVM_EXIT_SHUTDOWN => VmExit::Shutdown,
        // SAFETY: as above.
        kvm::KVM_EXIT_SYSTEM_EVENT => VmExit::SystemEvent(unsafe { run.__bindgen_anon_1.system_event }.type_),
        kvm::KVM_EXIT_INTERNAL_ERROR => {
            // SAFETY: as above.
            let internal = unsafe { run.__bindgen_anon_1.internal };
            VmExit::Failed(internal_error(internal.suberror))
        }
        kvm::KVM_EXIT_FAIL_ENTRY => {
            // SAFETY: as above.
            let fail = unsafe { run.__bindgen_anon_1.fail_entry };
            VmExit::Failed(format!(
                "the CPU refused to enter the guest, hardware reason {:#x}",
                fail.hardware_entry_failure_reason
            ))
        }
        other => VmExit::Failed(format!("unknown KVM exit {other}")),
    }
}

fn internal_error(suberror: u32) -> String {
    match suberror {
        kvm::KVM_INTERNAL_ERROR_EMULATION => {
            "KVM cannot emulate an instruction of the guest (the host's kernel log names its address; \
             the doctor tells whether this KVM can run Linux guests)"
                .to_owned()
        }
        other => format!("KVM internal error, suberror {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_fault_has_an_address_only_if_kvm_filled_it_in() {
        let mut run = kvm_run::default();
        run.__bindgen_anon_1.memory_fault.gpa = 0x1234_5000;
        // Linux before 6.8 leaves the reason of an earlier exit.
        for reason in [kvm::KVM_EXIT_MMIO, kvm::KVM_EXIT_HLT, kvm::KVM_EXIT_UNKNOWN] {
            run.exit_reason = reason;
            assert_eq!(faulted_at(&run), None, "exit {reason}");
        }
        run.exit_reason = kvm::KVM_EXIT_MEMORY_FAULT;
        assert_eq!(faulted_at(&run), Some(0x1234_5000));
    }
}
