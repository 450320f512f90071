//! Times the creation of a VM on this host, call by call, in the fastest order: memory slots before any
//! in-kernel device.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::time::{Duration, Instant};

use kvm_bindings::{kvm_pit_config, kvm_userspace_memory_region};
use kvm_ioctls::Kvm;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use serde::Serialize;

use crate::error::{Error, Result};

/// Number of VMs created.
const RUNS: usize = 20;
/// Memory of each VM in bytes.
const MEMORY: usize = 128 << 20;

/// Name of the first step.
pub(super) const CREATE_VM: &str = "KVM_CREATE_VM";
const STEPS: [&str; 6] = [
    CREATE_VM,
    "KVM_SET_USER_MEMORY_REGION (128 MiB)",
    "KVM_CREATE_IRQCHIP",
    "KVM_CREATE_PIT2",
    "KVM_CREATE_VCPU",
    "close",
];

/// Cost of one call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Step {
    /// The ioctl as the KVM API names it, or `close`.
    pub call: &'static str,
    /// Fastest of 20 runs, in microseconds.
    pub min_us: u64,
    /// Median of 20 runs, in microseconds.
    pub median_us: u64,
}

/// Returns the median of one step in microseconds, if it was measured.
pub(super) fn median_us(steps: &[Step], call: &str) -> Option<u64> {
    steps.iter().find(|step| step.call == call).map(|step| step.median_us)
}

/// Creates and closes VMs, and times each step.
pub(super) fn measure(kvm: &Kvm) -> Result<Vec<Step>> {
    let memory = UnusedMemory::map()?;
    let runs = (0..RUNS).map(|_| create_and_close(kvm, &memory)).collect::<Result<Vec<_>>>()?;
    let summary = |(index, call): (usize, &'static str)| {
        let mut times: Vec<_> = runs.iter().map(|run| run[index]).collect();
        times.sort_unstable();
        Step { call, min_us: micros(times[0]), median_us: micros(times[RUNS / 2]) }
    };
    Ok(STEPS.into_iter().enumerate().map(summary).collect())
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn create_and_close(kvm: &Kvm, memory: &UnusedMemory) -> Result<[Duration; 6]> {
    let mut lap = Lap(Instant::now());
    let vm = kvm.create_vm().map_err(refused(STEPS[0]))?;
    let create = lap.next();
    let region = kvm_userspace_memory_region {
        slot: 0,
        flags: 0,
        guest_phys_addr: 0,
        memory_size: MEMORY as u64,
        userspace_addr: memory.0 as u64,
    };
    // SAFETY: the range stays mapped until `memory` is dropped, after the VM. Nothing else uses it.
    unsafe { vm.set_user_memory_region(region) }.map_err(refused(STEPS[1]))?;
    let slot = lap.next();
    vm.create_irq_chip().map_err(refused(STEPS[2]))?;
    let irqchip = lap.next();
    vm.create_pit2(kvm_pit_config::default()).map_err(refused(STEPS[3]))?;
    let pit = lap.next();
    let vcpu = vm.create_vcpu(0).map_err(refused(STEPS[4]))?;
    let vcpu_made = lap.next();
    drop((vcpu, vm));
    Ok([create, slot, irqchip, pit, vcpu_made, lap.next()])
}

fn refused(call: &'static str) -> impl Fn(kvm_ioctls::Error) -> Error {
    move |error| Error::Kvm { call: call.into(), source: std::io::Error::from_raw_os_error(error.errno()) }
}

/// A stopwatch.
struct Lap(Instant);

impl Lap {
    fn next(&mut self) -> Duration {
        let now = Instant::now();
        now - std::mem::replace(&mut self.0, now)
    }
}

/// Mapped memory for VMs that never run.
struct UnusedMemory(*mut c_void);

impl UnusedMemory {
    fn map() -> Result<Self> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: the kernel chooses an unused address.
        let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), MEMORY, access, flags) };
        mapped
            .map(Self)
            .map_err(|errno| Error::Host { act: "map 128 MiB of memory".into(), source: errno.into() })
    }
}

impl Drop for UnusedMemory {
    fn drop(&mut self) {
        // SAFETY: `map` made the mapping with this length, and every VM that used it is closed.
        let _ = unsafe { munmap(self.0, MEMORY) };
    }
}
