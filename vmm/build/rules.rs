//! The system calls that each kind of thread may make, and with which arguments.
//!
//! The build script compiles these tables into filters. A call that no rule of its thread allows ends the
//! process. [`EVERY`] holds for all kinds, and the table of a kind adds to it.

use kvm_bindings as kvm;
use libc::*;

/// A rule: one system call.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The call's number.
    pub call: i64,
    /// Alternatives, each with conditions that must all hold. Empty: any arguments.
    pub when: &'static [&'static [Condition]],
}

/// A condition on an argument.
#[derive(Clone, Copy, Debug)]
pub struct Condition {
    /// The argument's number, from 0.
    pub argument: u8,
    /// The bits that are compared.
    pub mask: u32,
    /// Their value.
    pub value: u32,
}

/// Stands for the process's id in a condition. It is replaced when the process is confined.
pub const OWN_PROCESS: u32 = 0x7fff_ff01;
/// Stands for the number of the signal that brings a vCPU out of the guest, which the C library chooses.
pub const KICK: u32 = 0x7fff_ff02;

const ALL: u32 = u32::MAX;
/// Flags that make a thread of this process, as musl and glibc set them (clone(2)).
const THREAD: u32 = (CLONE_VM
    | CLONE_FS
    | CLONE_FILES
    | CLONE_SIGHAND
    | CLONE_THREAD
    | CLONE_SYSVSEM
    | CLONE_SETTLS
    | CLONE_PARENT_SETTID
    | CLONE_CHILD_CLEARTID) as u32;

const fn call(call: c_long) -> Rule {
    Rule { call, when: &[] }
}

const fn only(call: c_long, when: &'static [&'static [Condition]]) -> Rule {
    Rule { call, when }
}

const fn is(argument: u8, value: u32) -> Condition {
    Condition { argument, mask: ALL, value }
}

const fn without(argument: u8, bits: i32) -> Condition {
    Condition { argument, mask: bits as u32, value: 0 }
}

/// An ioctl request: direction, type, number and size of the argument (asm-generic/ioctl.h).
const fn request(direction: u32, kind: u8, number: u32, size: usize) -> u32 {
    direction << 30 | (size as u32) << 16 | (kind as u32) << 8 | number
}

/// Rules of all kinds of thread: locks, the heap, time, the end of a thread or of the process, reads and
/// writes of open descriptors, and messages of a panic.
pub static EVERY: &[Rule] = &[
    call(SYS_futex),
    call(SYS_exit),
    call(SYS_exit_group),
    call(SYS_rt_sigreturn),
    call(SYS_rt_sigprocmask),
    call(SYS_sigaltstack),
    call(SYS_restart_syscall),
    call(SYS_sched_yield),
    call(SYS_clock_gettime),
    call(SYS_clock_nanosleep),
    call(SYS_getpid),
    call(SYS_gettid),
    // Keys of hash maps.
    call(SYS_getrandom),
    call(SYS_brk),
    call(SYS_munmap),
    call(SYS_mremap),
    call(SYS_madvise),
    only(SYS_mmap, &[&[without(2, PROT_EXEC)]]),
    only(SYS_mprotect, &[&[without(2, PROT_EXEC)]]),
    call(SYS_read),
    call(SYS_write),
    call(SYS_writev),
    call(SYS_close),
    call(SYS_poll),
    call(SYS_ppoll),
    call(SYS_fstat),
    // The C library's other ways to examine an open descriptor.
    only(SYS_newfstatat, &[&[is(3, AT_EMPTY_PATH as u32)]]),
    only(SYS_statx, &[&[Condition { argument: 2, mask: AT_EMPTY_PATH as u32, value: AT_EMPTY_PATH as u32 }]]),
    // The debug build of Rust's library checks a descriptor that it closes.
    only(SYS_fcntl, &[&[is(1, F_GETFD as u32)], &[is(1, F_GETFL as u32)]]),
    // The thread's name, for the message about a forbidden call.
    only(SYS_prctl, &[&[is(0, PR_GET_NAME as u32)]]),
    // Kicks vCPUs, and ends the process after a second panic.
    only(
        SYS_tgkill,
        &[
            &[is(0, OWN_PROCESS), is(2, KICK)],
            &[is(0, OWN_PROCESS), is(2, SIGABRT as u32)],
            &[is(0, OWN_PROCESS), is(2, SIGSEGV as u32)],
            &[is(0, OWN_PROCESS), is(2, SIGBUS as u32)],
        ],
    ),
];

const KVM: u8 = 0xae;
const KVM_RUN: u32 = request(0, KVM, 0x80, 0);
const KVM_SIGNAL_MSI: u32 = request(1, KVM, 0xa5, size_of::<kvm::kvm_msi>());
const KVM_IRQ_LINE: u32 = request(1, KVM, 0x61, size_of::<kvm::kvm_irq_level>());
const KVM_SET_GSI_ROUTING: u32 = request(1, KVM, 0x6a, size_of::<kvm::kvm_irq_routing>());
const KVM_GET_REGS: u32 = request(2, KVM, 0x81, size_of::<kvm::kvm_regs>());
const KVM_GET_SREGS: u32 = request(2, KVM, 0x83, size_of::<kvm::kvm_sregs>());
const KVM_TRANSLATE: u32 = request(3, KVM, 0x85, size_of::<kvm::kvm_translation>());

/// A vCPU's thread: runs the guest, interrupts it, and writes its serial output. After a triple fault it
/// examines the registers and the memory that exceptions need.
static VCPU: &[Rule] = &[
    only(
        SYS_ioctl,
        &[
            &[is(1, KVM_RUN)],
            &[is(1, KVM_SIGNAL_MSI)],
            &[is(1, KVM_IRQ_LINE)],
            &[is(1, KVM_SET_GSI_ROUTING)],
            &[is(1, KVM_GET_REGS)],
            &[is(1, KVM_GET_SREGS)],
            &[is(1, KVM_TRANSLATE)],
        ],
    ),
    call(SYS_rt_sigtimedwait),
    only(SYS_process_vm_readv, &[&[is(0, OWN_PROCESS)]]),
    // The name of the memory's file, for the report.
    call(SYS_readlink),
];

/// Fills memory that is filled on touch, and waits for events.
static FILL: &[Rule] = &[
    only(
        SYS_ioctl,
        &[&[is(1, UFFDIO_COPY)], &[is(1, UFFDIO_WAKE)], &[is(1, UFFDIO_ZEROPAGE)], &[is(1, UFFDIO_POISON)]],
    ),
    call(SYS_epoll_wait),
    call(SYS_epoll_pwait),
    call(SYS_epoll_ctl),
    call(SYS_pread64),
    call(SYS_pwrite64),
    call(SYS_preadv),
    call(SYS_pwritev),
    call(SYS_lseek),
    call(SYS_mincore),
    only(SYS_fallocate, &[&[is(1, (FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE) as u32)]]),
];

const UFFD: u8 = 0xaa;
const UFFDIO_WAKE: u32 = request(2, UFFD, 2, 16);
const UFFDIO_COPY: u32 = request(3, UFFD, 3, 40);
const UFFDIO_ZEROPAGE: u32 = request(3, UFFD, 4, 32);
const UFFDIO_POISON: u32 = request(3, UFFD, 8, 32);

/// A device's thread: serves its queues, and interrupts the guest. It also fills memory that it touches.
static DEVICE: &[Rule] = &[
    only(
        SYS_ioctl,
        &[
            &[is(1, KVM_SIGNAL_MSI)],
            &[is(1, KVM_IRQ_LINE)],
            &[is(1, TUNSETOFFLOAD as u32)],
            &[is(1, FIONBIO as u32)],
        ],
    ),
    call(SYS_readv),
    call(SYS_recvfrom),
    call(SYS_recvmsg),
    call(SYS_sendto),
    call(SYS_sendmsg),
    call(SYS_accept4),
    call(SYS_shutdown),
];

/// A disk's thread: reads and writes its files, directly or by an io_uring made before.
static BLOCK: &[Rule] = &[
    only(SYS_ioctl, &[&[is(1, KVM_SIGNAL_MSI)], &[is(1, KVM_IRQ_LINE)], &[is(1, BLKDISCARD)]]),
    call(SYS_fdatasync),
    call(SYS_fsync),
    call(SYS_sync_file_range),
    call(SYS_ftruncate),
    call(SYS_fallocate),
    call(SYS_io_uring_enter),
];

/// `BLKDISCARD` (linux/fs.h).
const BLKDISCARD: u32 = request(0, 0x12, 119, 0);

/// Starts threads, which confine themselves further.
static START_THREADS: &[Rule] = &[
    only(SYS_clone, &[&[Condition { argument: 0, mask: !CLONE_DETACHED as u32, value: THREAD }]]),
    // A thread that starts: its name, and what glibc registers.
    only(SYS_prctl, &[&[is(0, PR_SET_NAME as u32)]]),
    call(SYS_set_robust_list),
    call(SYS_rseq),
    call(SYS_sched_getaffinity),
    // The filter and the Landlock domain of a thread.
    call(SYS_seccomp),
    call(SYS_landlock_create_ruleset),
    call(SYS_landlock_restrict_self),
];

/// The thread that watches idle devices: takes the first turn of each, and starts its thread. The thread
/// inherits these rules, so they include those of all devices.
static STARTER: &[Rule] = &[
    call(SYS_eventfd2),
    call(SYS_epoll_create1),
    only(SYS_fcntl, &[&[is(1, F_DUPFD_CLOEXEC as u32)], &[is(1, F_SETFD as u32)]]),
];

/// A pager's answers to the VMs that it serves from another process.
static ANSWER: &[Rule] = &[call(SYS_sendmsg)];

/// The opener: opens a socket's file, checks it and connects.
static OPENER: &[Rule] = &[
    call(SYS_recvmsg),
    call(SYS_sendmsg),
    call(SYS_open),
    call(SYS_openat),
    call(SYS_newfstatat),
    only(SYS_socket, &[&[is(0, AF_UNIX as u32)]]),
    call(SYS_connect),
];

/// The kinds of thread with their rules, in the order of `ThreadKind`.
pub static KINDS: &[(&str, &[&[Rule]])] = &[
    ("vcpu", &[VCPU]),
    ("device", &[DEVICE, FILL]),
    ("block", &[BLOCK, FILL]),
    ("starter", &[STARTER, START_THREADS, DEVICE, BLOCK, FILL]),
    ("pager", &[FILL, START_THREADS, ANSWER]),
    ("opener", &[OPENER]),
];
