//! System calls that a test makes in a thread of another process, by ptrace(2), as an attacker's code in that
//! thread would.
#![allow(unsafe_code)]

use std::fs;
use std::io;

use crate::patience::wait_until;

/// Reads a thread's blocked signals (linux/ptrace.h).
const PTRACE_GETSIGMASK: libc::c_int = 0x420a;

/// The threads of a process: their names and numbers.
///
/// # Panics
/// The process has ended.
#[must_use]
pub fn threads_of(pid: u32) -> Vec<(String, i32)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the process lives");
    let tasks = tasks.map(|task| task.expect("the process lives").path());
    // A thread may end meanwhile.
    let named = |task: std::path::PathBuf| {
        let name = fs::read_to_string(task.join("comm")).ok()?.trim_end().to_owned();
        Some((name, task.file_name()?.to_str()?.parse().ok()?))
    };
    tasks.filter_map(named).collect()
}

/// The children that a process's first thread started: their names and numbers.
///
/// # Panics
/// The process has ended.
#[must_use]
pub fn children_of(pid: u32) -> Vec<(String, i32)> {
    let listed = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("the process lives");
    let named = |pid: &str| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().to_owned();
        Some((name, pid.parse().ok()?))
    };
    listed.split_whitespace().filter_map(named).collect()
}

/// Returns the VM's process of a strictly confined guest: the child in another pid namespace of `keeper`, the
/// process that was started.
///
/// # Panics
/// There is none.
#[must_use]
pub fn vm_of(keeper: u32) -> u32 {
    let namespace = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let mut children = children_of(keeper).into_iter().map(|(_, pid)| pid.cast_unsigned());
    children.find(|pid| namespace(*pid) != namespace(keeper)).expect("the keeper has the VM's process")
}

/// Sends a signal to a thread of a process.
///
/// # Panics
/// The thread has ended.
pub fn signal_thread(process: u32, thread: i32, signal: rustix::process::Signal) {
    // SAFETY: the call takes numbers.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, signal.as_raw()) };
    assert_eq!(sent, 0, "{}", io::Error::last_os_error());
}

/// Makes a thread make this call. Returns before the call has ended. Takes root.
///
/// # Panics
/// The thread cannot be traced, or makes no system call for a long time.
pub fn inject(thread: i32, call: libc::c_long, arguments: [i64; 3]) {
    request(libc::PTRACE_SEIZE, thread, 0).expect("trace a thread");
    wait_until("the thread is in a system call", || {
        request(libc::PTRACE_INTERRUPT, thread, 0).expect("interrupt a thread");
        // SAFETY: waits for a traced thread.
        let stopped = unsafe { libc::waitpid(thread, std::ptr::null_mut(), libc::__WALL) };
        assert_eq!(stopped, thread, "{}", io::Error::last_os_error());
        // A signal that is blocked would end the process without the message that it has for it.
        let is_there = !blocks_signal_of_forbidden_calls(thread) && set_registers(thread, call, arguments);
        if !is_there {
            request(libc::PTRACE_CONT, thread, 0).expect("continue a thread");
        }
        is_there
    });
    request(libc::PTRACE_DETACH, thread, 0).expect("let a thread go");
}

/// Whether a stopped thread blocks SIGSYS, as it does while it starts another.
fn blocks_signal_of_forbidden_calls(thread: i32) -> bool {
    let mut mask = 0_u64;
    // SAFETY: the kernel writes a mask of the given size.
    let done = unsafe { libc::ptrace(PTRACE_GETSIGMASK, thread, size_of_val(&mask), &raw mut mask) };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
    mask & 1 << (libc::SIGSYS - 1) != 0
}

/// Takes a stopped thread back to the system call that it came from, with other arguments. Returns false if
/// it was in none.
fn set_registers(thread: i32, call: libc::c_long, [first, second, third]: [i64; 3]) -> bool {
    // SAFETY: zeroes are valid registers, and the kernel fills them.
    let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    request(libc::PTRACE_GETREGS, thread, (&raw mut registers).addr()).expect("read registers");
    let instruction = registers.rip - 2;
    // SAFETY: reads a word of the traced process.
    let word = unsafe { libc::ptrace(libc::PTRACE_PEEKTEXT, thread, instruction, 0) };
    if word & 0xffff != i64::from(u16::from_le_bytes([0x0f, 0x05])) {
        return false;
    }
    registers.rip = instruction;
    registers.rax = call.cast_unsigned();
    (registers.rdi, registers.rsi, registers.rdx) =
        (first.cast_unsigned(), second.cast_unsigned(), third.cast_unsigned());
    // The interrupted call is not restarted.
    registers.orig_rax = u64::MAX;
    request(libc::PTRACE_SETREGS, thread, (&raw mut registers).addr()).expect("write registers");
    true
}

fn request(request: libc::c_int, thread: i32, data: usize) -> io::Result<()> {
    // SAFETY: `data` is 0 or the address of registers, and the kernel checks the thread.
    match unsafe { libc::ptrace(request, thread, 0_usize, data) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
