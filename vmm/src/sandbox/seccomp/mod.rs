//! Filters of system calls (seccomp(2)), one for each kind of thread.
//!
//! The build script compiles the tables of `build/rules.rs`. The process's id, and the C library's choice of
//! the kick signal, are filled in when the process is confined.
#![allow(unsafe_code)]

#[cfg(test)]
mod tests;

use std::io;

use seccompiler::{BpfProgram, TargetArch, sock_filter};

use super::ThreadKind;
use super::this_thread::ThisThread;
use crate::error::{Error, Result};

/// The compiled filters; each number holds a `struct sock_filter`.
mod built_in {
    include!(concat!(env!("OUT_DIR"), "/filters.rs"));
}

/// `BPF_RET | BPF_K`, and `BPF_JMP | BPF_JEQ | BPF_K` (linux/bpf_common.h).
const RETURN: u16 = 0x06;
const JUMP_IF_EQUAL: u16 = 0x15;

/// Consequence of a call that a thread's filter does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnForbiddenCall {
    /// The kernel ends the process without a message. `dmesg` has the call where auditing is on.
    KillProcess,
    /// The thread gets SIGSYS. The program has a handler that reports the call and ends the process.
    Signal,
}

/// A filter for each kind of thread, ready to be installed.
#[derive(Debug)]
pub(super) struct Filters([BpfProgram; ThreadKind::ALL.len()]);

impl Filters {
    /// Prepares the built-in filters, or those of a JSON text.
    ///
    /// # Errors
    /// The text is not valid, or lacks a kind.
    pub fn new(on_forbidden: OnForbiddenCall, json: Option<&str>) -> Result<Self> {
        let mut filters = match json {
            Some(text) => of_json(text)?,
            None => ThreadKind::ALL.map(|kind| built_in(kind).iter().map(|code| decode(*code)).collect()),
        };
        for instruction in filters.iter_mut().flatten() {
            match instruction {
                sock_filter { code: JUMP_IF_EQUAL, k: k @ built_in::KICK, .. } => {
                    *k = libc::SIGRTMIN().cast_unsigned();
                }
                sock_filter { code: RETURN, k: k @ libc::SECCOMP_RET_TRAP, .. }
                    if on_forbidden == OnForbiddenCall::KillProcess =>
                {
                    *k = libc::SECCOMP_RET_KILL_PROCESS;
                }
                _ => {}
            }
        }
        Ok(Self(filters))
    }

    /// Installs the filter of `kind` on the calling thread. It stays until the thread ends.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn install(&self, kind: ThreadKind) -> io::Result<()> {
        let mut program = self.0[kind as usize].clone();
        // The process may have been forked since the filters were prepared.
        let process = ThisThread::get().process.cast_unsigned();
        for instruction in &mut program {
            if let sock_filter { code: JUMP_IF_EQUAL, k: k @ built_in::OWN_PROCESS, .. } = instruction {
                *k = process;
            }
        }
        let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut().cast() };
        // SAFETY: the kernel reads `len` instructions, and copies them before it returns.
        let done =
            unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

fn built_in(kind: ThreadKind) -> &'static [u64] {
    match kind {
        ThreadKind::Vcpu => &built_in::VCPU,
        ThreadKind::Device => &built_in::DEVICE,
        ThreadKind::Block => &built_in::BLOCK,
        ThreadKind::Starter => &built_in::STARTER,
        ThreadKind::Pager => &built_in::PAGER,
        ThreadKind::Opener => &built_in::OPENER,
        ThreadKind::Resolver => &built_in::RESOLVER,
        ThreadKind::Worker => &built_in::WORKER,
    }
}

/// Decodes an instruction that the build script encoded.
fn decode(code: u64) -> sock_filter {
    sock_filter { code: code as u16, jt: (code >> 16) as u8, jf: (code >> 24) as u8, k: (code >> 32) as u32 }
}

/// Compiles filters of the user.
fn of_json(text: &str) -> Result<[BpfProgram; ThreadKind::ALL.len()]> {
    const FIELD: &str = "seccomp_filter";
    let invalid = |problem: String| Error::config(FIELD, problem);
    let mut map = seccompiler::compile_from_json(text.as_bytes(), TargetArch::x86_64)
        .map_err(|error| invalid(error.to_string()))?;
    let missing =
        |kind: ThreadKind| invalid(format!("there is no filter for threads of kind {}", kind.name()));
    let mut filters: [BpfProgram; ThreadKind::ALL.len()] = Default::default();
    for (filter, kind) in filters.iter_mut().zip(ThreadKind::ALL) {
        *filter = map.remove(kind.name()).ok_or_else(|| missing(kind))?;
    }
    match map.keys().next() {
        Some(other) => Err(invalid(format!("{other} is not a kind of thread"))),
        None => Ok(filters),
    }
}
