//! A guest that writes to one page after another, and keeps the longest time between two writes.
#![allow(unsafe_code)]

use std::arch::global_asm;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use kvm_bindings::{KVM_MEM_LOG_DIRTY_PAGES, kvm_segment, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use volt_benches::{OrSay, Result};

use super::super::pause::cycles_a_second;
use super::memory::{Kind, Memory};

/// Addresses of the tables, the code and the counters; the guest's pages begin behind them.
const TABLES: u64 = 0x1000;
const CODE: u64 = 0x8000;
const STATS: u64 = 0x9000;
const FIRST: u64 = 0x10_0000;
/// Huge pages that its tables map.
const HUGE: u64 = 512;

// rsi: its first page; rdi: their end; r8: cycles from one write to the next; r9: the longest gap, and how
// many writes.
global_asm!(
    ".section .rodata",
    ".global volt_bench_writer, volt_bench_writer_end",
    "volt_bench_writer:",
    "rdtsc",
    "shl rdx, 32",
    "or rax, rdx",
    "mov r10, rax",
    "mov r11, rax",
    "2: mov rbx, rsi",
    "3: rdtsc",
    "shl rdx, 32",
    "or rax, rdx",
    "cmp rax, r11",
    "jb 3b",
    "mov rcx, rax",
    "sub rcx, r10",
    "mov r10, rax",
    "cmp rcx, [r9]",
    "jbe 4f",
    "mov [r9], rcx",
    "4: lea r11, [rax + r8]",
    "mov [rbx], rax",
    "inc qword ptr [r9 + 8]",
    "add rbx, 4096",
    "cmp rbx, rdi",
    "jb 3b",
    "jmp 2b",
    "volt_bench_writer_end:",
    ".text",
);

unsafe extern "C" {
    static volt_bench_writer: u8;
    static volt_bench_writer_end: u8;
}

/// See the module.
pub struct Guest {
    pub memory: Memory,
    vm: VmFd,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    wants: Mutex<Wants>,
    changed: Condvar,
    interrupts: AtomicBool,
    failed: AtomicBool,
    thread: AtomicU64,
}

#[derive(Default)]
struct Wants {
    pause: bool,
    paused: bool,
    end: bool,
}

impl Guest {
    /// Starts one over memory of this kind.
    pub fn start(kind: Kind, len: u64, cycles: u64) -> Result<Self> {
        assert!(len <= HUGE * (2 << 20));
        let memory = Memory::new(kind, len)?;
        write(&memory, STATS, &[0; 16]);
        let tables = [(0, (TABLES + 0x1000) | 3), (0x1000, (TABLES + 0x2000) | 3)];
        tables.into_iter().for_each(|(at, entry): (u64, u64)| {
            write(&memory, TABLES + at, &[0; 4096]);
            write(&memory, TABLES + at, &entry.to_le_bytes());
        });
        for page in 0..HUGE {
            write(&memory, TABLES + 0x2000 + page * 8, &((page * (2 << 20)) | 0x83).to_le_bytes());
        }
        // SAFETY: both lie in one section, in this order.
        let code = unsafe {
            let (start, end) = (&raw const volt_bench_writer, &raw const volt_bench_writer_end);
            std::slice::from_raw_parts(start, end as usize - start as usize)
        };
        write(&memory, CODE, code);
        let kvm = Kvm::new().or_say("open /dev/kvm")?;
        let vm = kvm.create_vm().or_say("make a VM")?;
        set_slot(&vm, &memory, 0)?;
        let vcpu = vm.create_vcpu(0).or_say("make a vCPU")?;
        set_state(&vcpu, len, cycles).or_say("set up a vCPU")?;
        // SAFETY: the handler does nothing, so that anything may be interrupted by it.
        unsafe { libc::signal(libc::SIGUSR1, nothing as *const () as usize) };
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        let thread =
            thread::Builder::new().name("bench-vcpu".to_owned()).spawn(move || run(vcpu, &of_thread));
        let thread = thread.or_say("start a vCPU")?;
        let guest = Self { memory, vm, shared, thread: Some(thread) };
        let start = Instant::now();
        while guest.writes() < len / 4096 {
            if guest.shared.failed.load(Ordering::SeqCst) || start.elapsed() > Duration::from_secs(60) {
                return Err("the guest does not write".to_owned());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(guest)
    }

    /// Has KVM log its writes, or not.
    pub fn log(&self, logs: bool) -> Result<()> {
        set_slot(&self.vm, &self.memory, if logs { KVM_MEM_LOG_DIRTY_PAGES } else { 0 })
    }

    /// The pages written since the last time, a bit a page.
    pub fn written(&self) -> Result<Vec<u64>> {
        self.vm.get_dirty_log(0, self.memory.len as usize).or_say("ask for the dirty log")
    }

    /// Stops it for `act`, and says how long it stood still.
    pub fn paused<T>(&self, act: impl FnOnce() -> T) -> (T, Duration) {
        let start = Instant::now();
        let lock = || self.shared.wants.lock().unwrap_or_else(PoisonError::into_inner);
        lock().pause = true;
        self.shared.interrupts.store(true, Ordering::SeqCst);
        loop {
            let thread = self.shared.thread.load(Ordering::SeqCst);
            // SAFETY: the thread lives as long as this object.
            unsafe { libc::pthread_kill(thread as libc::pthread_t, libc::SIGUSR1) };
            let wait = Duration::from_micros(200);
            let waited = self.shared.changed.wait_timeout_while(lock(), wait, |wants| !wants.paused);
            if waited.unwrap_or_else(PoisonError::into_inner).0.paused {
                break;
            }
        }
        let done = act();
        self.shared.interrupts.store(false, Ordering::SeqCst);
        lock().pause = false;
        self.shared.changed.notify_all();
        (done, start.elapsed())
    }

    pub fn writes(&self) -> u64 {
        self.stat(8).load(Ordering::Relaxed)
    }

    /// The longest time between two writes since this was asked last.
    pub fn longest_gap(&self) -> Duration {
        let cycles = self.stat(0).swap(0, Ordering::Relaxed);
        Duration::from_secs_f64(cycles as f64 / cycles_a_second() as f64)
    }

    /// Writes a second.
    pub fn speed(&self, within: Duration) -> f64 {
        let (start, before) = (Instant::now(), self.writes());
        thread::sleep(within);
        (self.writes() - before) as f64 / start.elapsed().as_secs_f64()
    }

    fn stat(&self, at: u64) -> &AtomicU64 {
        // SAFETY: the word lies in the memory, aligned, and the guest's accesses to it are those of an x86-64
        // CPU.
        unsafe { AtomicU64::from_ptr((self.memory.start + STATS + at) as *mut u64) }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.shared.interrupts.store(true, Ordering::SeqCst);
        self.shared.wants.lock().unwrap_or_else(PoisonError::into_inner).end = true;
        while self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            // SAFETY: it is joined below, and lives until then.
            unsafe { libc::pthread_kill(self.shared.thread.load(Ordering::SeqCst) as _, libc::SIGUSR1) };
            thread::sleep(Duration::from_micros(200));
        }
    }
}

extern "C" fn nothing(_: libc::c_int) {}

fn write(memory: &Memory, at: u64, bytes: &[u8]) {
    // SAFETY: it lies in the memory, which no guest has yet.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), (memory.start + at) as *mut u8, bytes.len()) };
}

fn set_slot(vm: &VmFd, memory: &Memory, flags: u32) -> Result<()> {
    let slot = kvm_userspace_memory_region {
        slot: 0,
        flags,
        guest_phys_addr: 0,
        memory_size: memory.len,
        userspace_addr: memory.start,
    };
    // SAFETY: the memory outlives the VM, whose guest is meant to write to it.
    unsafe { vm.set_user_memory_region(slot) }.or_say("give a VM memory")
}

/// In 64-bit mode, at the code.
fn set_state(vcpu: &VcpuFd, len: u64, cycles: u64) -> std::result::Result<(), kvm_ioctls::Error> {
    let mut sregs = vcpu.get_sregs()?;
    let data = kvm_segment {
        base: 0,
        limit: u32::MAX,
        selector: 16,
        type_: 3,
        present: 1,
        s: 1,
        g: 1,
        db: 1,
        ..kvm_segment::default()
    };
    sregs.cs = kvm_segment { selector: 8, type_: 11, l: 1, db: 0, ..data };
    [sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss] = [data; 5];
    (sregs.cr0, sregs.cr3, sregs.cr4, sregs.efer) = (0x8000_0011, TABLES, 0x20, 0x500);
    vcpu.set_sregs(&sregs)?;
    let mut regs = vcpu.get_regs()?;
    (regs.rip, regs.rflags, regs.rsi, regs.rdi) = (CODE, 2, FIRST, len);
    (regs.r8, regs.r9) = (cycles, STATS);
    vcpu.set_regs(&regs)
}

fn run(mut vcpu: VcpuFd, shared: &Shared) {
    // SAFETY: it names this thread.
    shared.thread.store(unsafe { libc::pthread_self() } as u64, Ordering::SeqCst);
    loop {
        let mut wants = shared.wants.lock().unwrap_or_else(PoisonError::into_inner);
        if wants.end {
            return;
        }
        wants.paused = wants.pause;
        if wants.paused {
            shared.changed.notify_all();
            while wants.pause {
                wants = shared.changed.wait(wants).unwrap_or_else(PoisonError::into_inner);
            }
            wants.paused = false;
        }
        drop(wants);
        match vcpu.run() {
            Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => {}
            Ok(VcpuExit::Intr) => {}
            other => {
                eprintln!("the guest ended: {other:?}");
                shared.failed.store(true, Ordering::SeqCst);
                return;
            }
        }
    }
}
