//! The seccomp filter that reports the watched calls.

use super::calls::{Side, Watched, When};
use crate::kvm_shim::{equal, statement};

// Offsets of `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
/// `AUDIT_ARCH_X86_64`.
const X86_64: u32 = 0xc000_003e;

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const REPORT: u32 = libc::SECCOMP_RET_USER_NOTIF;

/// `KVM_RUN`, `KVM_IRQ_LINE`, `KVM_IRQ_LINE_STATUS` and `KVM_SIGNAL_MSI`.
const KVM_OF_RUNNING_GUESTS: [u32; 4] = [0xae80, 0x4008_ae61, 0xc008_ae67, 0x4020_aea5];
const KVM_TYPE: u32 = 0xae00;

/// Makes the filter. The process hands its listener over by `sendmsg` on descriptor `far`, which passes.
pub(super) fn program(side: Side, far: i32) -> Vec<libc::sock_filter> {
    let sends_listener = [load_argument(0), equal(far.cast_unsigned(), 0, 1), answer(ALLOW)];
    let mut program = vec![load(ARCHITECTURE), equal(X86_64, 1, 0), answer(ALLOW), load(NUMBER)];
    program.push(equal(libc::SYS_sendmsg as u32, 0, sends_listener.len() as u8 + 1));
    program.extend(sends_listener);
    program.push(load(NUMBER));
    for call in side.calls() {
        let then = condition(call);
        program.push(equal(call.number as u32, 0, then.len() as u8));
        program.extend(then);
    }
    program.push(answer(ALLOW));
    program
}

/// Returns the statements for a call whose number fits. All ways through them end in an answer.
fn condition(call: &Watched) -> Vec<libc::sock_filter> {
    let by_bits = |argument, bits, has, lacks| {
        vec![load_argument(argument), any(bits, 0, 1), answer(has), answer(lacks)]
    };
    match call.when {
        When::Always | When::Opens { .. } => vec![answer(REPORT)],
        When::Has(argument, bits) => by_bits(argument, bits, REPORT, ALLOW),
        When::Lacks(argument, bits) => by_bits(argument, bits, ALLOW, REPORT),
        When::Is(argument, values) => {
            let cases = values.iter().flat_map(|value| [equal(*value, 0, 1), answer(REPORT)]);
            [load_argument(argument)].into_iter().chain(cases).chain([answer(ALLOW)]).collect()
        }
        When::MapsFile { shared } => {
            let (if_shared, if_private) = if shared { (REPORT, ALLOW) } else { (ALLOW, REPORT) };
            let mut then = vec![load_argument(4), equal(u32::MAX, 0, 1), answer(ALLOW)];
            then.extend(by_bits(3, libc::MAP_PRIVATE as u32, if_private, if_shared));
            then
        }
        When::Kvm => {
            let mut then = vec![load_argument(1)];
            then.extend(KVM_OF_RUNNING_GUESTS.iter().flat_map(|hot| [equal(*hot, 0, 1), answer(ALLOW)]));
            then.push(statement(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0xff00));
            then.extend([equal(KVM_TYPE, 0, 1), answer(REPORT), answer(ALLOW)]);
            then
        }
    }
}

fn load(offset: u32) -> libc::sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset)
}

/// Loads the low half of an argument.
fn load_argument(number: u32) -> libc::sock_filter {
    load(16 + 8 * number)
}

fn answer(action: u32) -> libc::sock_filter {
    statement(libc::BPF_RET | libc::BPF_K, action)
}

/// Skips `jt` statements where the loaded word has one of the bits, `jf` where not.
fn any(bits: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code: (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16, jt, jf, k: bits }
}
