//! The floor in this process: the same `programs/floor.c` that the floor's program is made of.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use volt_benches::{OrSay, Result};

/// The steps of the floor, in order (`enum floor_step`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Step {
    VmCreate,
    MemoryMap,
    MemoryRegister,
    IrqchipCreate,
    VcpuCreate,
    PitCreate,
    VcpuState,
    Irqchip,
    Clock,
    FirstByte,
}

/// All of them, with the names that volt-vmm's own steps have.
pub const STEPS: [(Step, &str); 10] = [
    (Step::VmCreate, "VM create"),
    (Step::MemoryMap, "memory map"),
    (Step::MemoryRegister, "memory register"),
    (Step::IrqchipCreate, "irqchip create"),
    (Step::VcpuCreate, "vCPU create"),
    (Step::PitCreate, "PIT create"),
    (Step::VcpuState, "vCPU state"),
    (Step::Irqchip, "irqchip"),
    (Step::Clock, "clock"),
    (Step::FirstByte, "first guest byte"),
];

/// `struct floor_vm`.
#[repr(C)]
struct FloorVm {
    fds: [i32; 3],
    memory: *mut u8,
    run: *mut u8,
    memory_len: u64,
    run_len: u64,
}

unsafe extern "C" {
    fn floor_restore(vm: *mut FloorVm, memory: i32, digest: *const u64, ends: *mut u64) -> i32;
    fn floor_close(vm: *mut FloorVm);
}

/// How long a restore took: to the guest's first byte, by step, and what followed.
pub struct Timing {
    /// From the call to the first byte.
    pub total: Duration,
    /// In the order of [`STEPS`].
    pub steps: [Duration; STEPS.len()],
    /// Closing the VM.
    pub close: Duration,
}

/// State from which the floor restores.
pub struct Floor {
    memory: File,
    /// As words, because it must be aligned.
    digest: Vec<u64>,
}

impl Floor {
    /// From the memory file of a snapshot and the digest of its state.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn new(memory: &Path, digest: &[u8]) -> Result<Self> {
        let words = digest.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("8 bytes")));
        Ok(Self { memory: File::open(memory).or_say("open memory.snap")?, digest: words.collect() })
    }

    /// Restores once, and closes the VM again.
    ///
    /// # Errors
    /// KVM refuses.
    pub fn restore(&self) -> Result<Timing> {
        let mut vm = FloorVm {
            fds: [0; 3],
            memory: std::ptr::null_mut(),
            run: std::ptr::null_mut(),
            memory_len: 0,
            run_len: 0,
        };
        let mut ends = [0u64; STEPS.len()];
        let start = now();
        // SAFETY: `vm` and `ends` have the layout and length of floor.h, and the digest is one that
        // `digest::of` made.
        let byte = unsafe {
            floor_restore(&raw mut vm, self.memory.as_raw_fd(), self.digest.as_ptr(), ends.as_mut_ptr())
        };
        let refused = (byte < 0).then(io::Error::last_os_error);
        let end = now();
        let closing = Instant::now();
        // SAFETY: `vm` is what floor_restore left, whether it failed or not.
        unsafe { floor_close(&raw mut vm) };
        let close = closing.elapsed();
        if let Some(refused) = refused {
            return Err(format!("the floor cannot restore: {refused}"));
        }
        ends[Step::FirstByte as usize] = end;
        let mut last = start;
        let steps = ends.map(|end| {
            // A step that there was nothing to do for has no end.
            let end = end.max(last);
            let took = Duration::from_nanos(end - last);
            last = end;
            took
        });
        Ok(Timing { total: Duration::from_nanos(end - start), steps, close })
    }
}

/// Nanoseconds of the clock that floor.c reads.
fn now() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists and `now` is what it writes to.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}
