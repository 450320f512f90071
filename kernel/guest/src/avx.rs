//! `avx`: holds known values in all sixteen ymm registers, and nowhere else, while the guest runs.
//!
//! The thread that holds them stays in one block of assembly. Only the kernel and the hypervisor move the
//! values to memory and back, which is under test.
//!
//! No register is free for a comparison, so `vptest` compares with memory. Its carry flag is set if the
//! register has every bit of the pattern. With the inverted pattern, its zero flag is set if the register has
//! no other bit.
#![allow(unsafe_code)]

use std::arch::asm;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::console;
use crate::outcome::Outcome;
use crate::sleepers::in_background;

const REGISTERS: usize = 16;
const INTERVAL: Duration = Duration::from_millis(200);

/// The registers' values, then their inverse, with the alignment of `vmovdqa`.
#[repr(C, align(32))]
struct Values {
    plain: [[u64; 4]; REGISTERS],
    inverted: [[u64; 4]; REGISTERS],
}

static VALUES: Values = values();
static ROUNDS: AtomicU64 = AtomicU64::new(0);
static CORRUPT: AtomicBool = AtomicBool::new(false);
static STARTED: AtomicBool = AtomicBool::new(false);

/// `avx`: prints `avx ok N` about every 200 ms, where N counts the checks, or `avx corrupt` once.
pub(crate) fn start() -> Outcome {
    if !std::arch::is_x86_feature_detected!("avx") {
        return Err("no avx".to_owned());
    }
    if STARTED.swap(true, Ordering::Relaxed) {
        return Err("started already".to_owned());
    }
    in_background(|| {
        hold_values();
        CORRUPT.store(true, Ordering::Release);
    })?;
    in_background(|| {
        let mut seen = 0;
        while !CORRUPT.load(Ordering::Acquire) {
            let rounds = ROUNDS.load(Ordering::Relaxed);
            if rounds != seen {
                console::line(&format!("avx ok {rounds}"));
            }
            seen = rounds;
            std::thread::sleep(INTERVAL);
        }
        console::line("avx corrupt");
    })
}

/// Makes a different value for each lane.
const fn values() -> Values {
    let mut values = Values { plain: [[0; 4]; REGISTERS], inverted: [[0; 4]; REGISTERS] };
    let mut register = 0;
    while register < REGISTERS {
        let mut lane = 0;
        while lane < 4 {
            let value = (1 + register as u64 * 4 + lane as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            values.plain[register][lane] = value;
            values.inverted[register][lane] = !value;
            lane += 1;
        }
        register += 1;
    }
    values
}

/// Loads the registers and checks them repeatedly; returns only if one has lost its value.
fn hold_values() {
    // SAFETY: the caller checked that the processor has AVX. Reads stay within VALUES, which is aligned. The
    // only write is atomic and goes to ROUNDS. All registers are declared.
    unsafe {
        asm!(
            ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
            "vmovdqa ymm\\n, [{values} + 32 * \\n]",
            ".endr",
            "2:",
            "mov {spins:e}, 1000",
            "3:",
            "pause",
            "dec {spins:e}",
            "jnz 3b",
            ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
            "vptest ymm\\n, [{values} + 32 * \\n]",
            "jnc 4f",
            "vptest ymm\\n, [{values} + 512 + 32 * \\n]",
            "jnz 4f",
            ".endr",
            "lock inc qword ptr [{rounds}]",
            "jmp 2b",
            "4:",
            "vzeroupper",
            values = in(reg) &raw const VALUES,
            rounds = in(reg) ROUNDS.as_ptr(),
            spins = out(reg) _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack),
        );
    }
}
