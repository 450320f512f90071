//! `KVM_PRE_FAULT_MEMORY`: second-stage page tables before the guest needs them (KVM API, section 4.143;
//! Linux 6.11, with nested paging).
#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

use kvm_bindings::kvm_pre_fault_memory;
use kvm_ioctls::VcpuFd;

/// `_IOWR(KVMIO, 0xd5, struct kvm_pre_fault_memory)`.
const KVM_PRE_FAULT_MEMORY: u32 = 0xc040_aed5;

/// Maps a range of guest physical addresses, in whole pages. A page is mapped for writing if the process has
/// it for writing already.
///
/// # Errors
/// The host's KVM cannot do that, or a page cannot be read. Pages up to that one are mapped.
pub(super) fn pre_fault(vcpu: &VcpuFd, of: Range<u64>) -> io::Result<()> {
    let mut rest =
        kvm_pre_fault_memory { gpa: of.start, size: of.end - of.start, ..kvm_pre_fault_memory::default() };
    // A call that ends early, as by a signal, has moved the start.
    while rest.size > 0 {
        // SAFETY: KVM reads and writes `rest`, a structure of the size in the number of the call.
        if unsafe { libc::ioctl(vcpu.as_raw_fd(), KVM_PRE_FAULT_MEMORY as libc::Ioctl, &raw mut rest) } < 0 {
            let error = io::Error::last_os_error();
            if !matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) {
                return Err(error);
            }
        }
    }
    Ok(())
}
