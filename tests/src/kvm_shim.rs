//! Another KVM for one child or one thread. A seccomp filter refuses calls of KVM that an older kernel lacks
//! and reports capabilities of another processor as absent. The filter can also refuse other system calls or
//! end the child at them.
//!
//! ```text
//! child:   KvmShim ──apply──> pre_exec: prctl ──exec──> volt-vmm: every ioctl passes the filter
//! thread:  KvmShim ──enter──> this thread, and every thread that it starts from then on
//! ```
#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// `KVM_CHECK_EXTENSION`, `_IO(KVMIO, 0x03)`.
const CHECK_EXTENSION: u32 = 0xae03;
/// `_IOR(KVMIO, 0xcf, struct kvm_xsave)`.
const GET_XSAVE2: u32 = 0x9000_aecf;
/// `_IOW(KVMIO, 0xe1, struct kvm_device_attr)`, then the calls that get an attribute and ask for one.
const DEVICE_ATTRIBUTES: [u32; 3] = [0x4018_aee1, 0x4018_aee2, 0x4018_aee3];
/// `_IO(KVMIO, 0xad)`.
pub const KVMCLOCK_CTRL: u32 = 0xaead;

const CAP_TSC_CONTROL: u32 = 60;
const CAP_XSAVE2: u32 = 208;

// Offsets of `struct seccomp_data`: the call's number, its architecture, the low halves of arguments 1 and 2.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENT_1: u32 = 24;
const ARGUMENT_2: u32 = 32;
/// `AUDIT_ARCH_X86_64`.
const X86_64: u32 = 0xc000_003e;

/// The system calls that sync a file.
pub(crate) const SYNCS: [libc::c_long; 6] = [
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_syncfs,
    libc::SYS_sync,
    libc::SYS_msync,
];

/// The system calls that the filter answers itself. An empty shim answers none.
#[derive(Clone, Debug, Default)]
pub struct KvmShim {
    rules: Vec<Rule>,
    /// Other system calls, and the answer to each (`SECCOMP_RET_*`).
    others: Vec<(libc::c_long, u32)>,
}

#[derive(Clone, Copy, Debug)]
struct Rule {
    request: u32,
    /// The low half of the argument, or none for any argument.
    argument: Option<u32>,
    /// 0 makes the call return 0.
    errno: i32,
}

impl KvmShim {
    /// Returns the host's own KVM.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Refuses an ioctl.
    #[must_use]
    pub fn refuses(mut self, request: u32, errno: i32) -> Self {
        self.rules.push(Rule { request, argument: None, errno });
        self
    }

    /// Reports a capability (`KVM_CAP_*`) as absent.
    #[must_use]
    pub fn without_capability(mut self, number: u32) -> Self {
        self.rules.push(Rule { request: CHECK_EXTENSION, argument: Some(number), errno: 0 });
        self
    }

    /// Simulates Linux before 5.17: only the plain XSAVE area.
    #[must_use]
    pub fn without_xsave2(self) -> Self {
        self.without_capability(CAP_XSAVE2).refuses(GET_XSAVE2, libc::EINVAL)
    }

    /// Simulates Linux before 5.16: a vCPU has no attributes, so no TSC offset.
    #[must_use]
    pub fn without_tsc_offset(self) -> Self {
        DEVICE_ATTRIBUTES.into_iter().fold(self, |shim, request| shim.refuses(request, libc::ENXIO))
    }

    /// Simulates a processor that cannot scale its TSC.
    #[must_use]
    pub fn without_tsc_scaling(self) -> Self {
        self.without_capability(CAP_TSC_CONTROL)
    }

    /// Kills the process when it syncs a file. The filter does not see syncs through io_uring.
    #[must_use]
    pub fn killed_by_syncs(mut self) -> Self {
        self.others.extend(SYNCS.map(|number| (number, libc::SECCOMP_RET_KILL_PROCESS)));
        self
    }

    /// Simulates a file system without early writeback, which leaves all of it to the sync.
    #[must_use]
    pub fn without_early_writeback(mut self) -> Self {
        let refusal = libc::SECCOMP_RET_ERRNO | libc::EOPNOTSUPP.cast_unsigned();
        self.others.push((libc::SYS_sync_file_range, refusal));
        self
    }

    /// Runs a command on this KVM.
    pub fn apply(&self, command: &mut Command) {
        let program = self.program();
        // SAFETY: between fork and exec only system calls are made, on a program that exists already.
        unsafe { command.pre_exec(move || install(&program)) };
    }

    /// Puts the calling thread and its later threads on this KVM, for the rest of their lives.
    ///
    /// # Panics
    /// The kernel refuses the filter.
    pub fn enter(&self) {
        install(&self.program()).expect("install a seccomp filter");
    }

    fn program(&self) -> Vec<libc::sock_filter> {
        let load = |offset| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset);
        let answer = |action| statement(libc::BPF_RET | libc::BPF_K, action);
        let allow = answer(libc::SECCOMP_RET_ALLOW);
        let number = libc::SYS_ioctl as u32;
        let mut program = vec![load(ARCHITECTURE), equal(X86_64, 1, 0), allow, load(NUMBER)];
        for (number, action) in &self.others {
            program.extend([equal(*number as u32, 0, 1), answer(*action)]);
        }
        program.extend([equal(number, 1, 0), allow]);
        for rule in &self.rules {
            let refusal = answer(libc::SECCOMP_RET_ERRNO | rule.errno.cast_unsigned());
            program.push(load(ARGUMENT_1));
            match rule.argument {
                None => program.extend([equal(rule.request, 0, 1), refusal]),
                Some(argument) => program.extend([
                    equal(rule.request, 0, 3),
                    load(ARGUMENT_2),
                    equal(argument, 0, 1),
                    refusal,
                ]),
            }
        }
        program.push(allow);
        program
    }
}

/// Returns a filter that gives `action` to these system calls and allows all others.
pub(crate) fn answer_to(calls: &[libc::c_long], action: u32) -> Vec<libc::sock_filter> {
    let load = |offset| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset);
    let answer = |action| statement(libc::BPF_RET | libc::BPF_K, action);
    let allow = answer(libc::SECCOMP_RET_ALLOW);
    let mut program = vec![load(ARCHITECTURE), equal(X86_64, 1, 0), allow, load(NUMBER)];
    for call in calls {
        program.extend([equal(*call as u32, 0, 1), answer(action)]);
    }
    program.push(allow);
    program
}

pub(crate) fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Skips `jt` statements where the loaded word is `k`, `jf` where not.
pub(crate) fn equal(k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, jt, jf, k }
}

fn install(program: &[libc::sock_filter]) -> io::Result<()> {
    let len = program.len() as u16;
    let filter = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    // SAFETY: the first call takes numbers only; the second reads `len` statements, which `program` holds.
    let installed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) == 0
    };
    if installed { Ok(()) } else { Err(io::Error::last_os_error()) }
}
