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

/// Rules of all kinds of thread: locks, the heap, the end of a thread or of the process, messages, and the
/// handlers of signals. vCPUs have few others, so what another kind needs does not belong here.
pub static EVERY: &[Rule] = &[
    call(SYS_futex),
    call(SYS_exit),
    call(SYS_exit_group),
    call(SYS_rt_sigreturn),
    call(SYS_rt_sigprocmask),
    call(SYS_sigaltstack),
    // After a stop (SIGSTOP) in a call with a time limit.
    call(SYS_restart_syscall),
    // Where the vDSO cannot tell the time.
    call(SYS_clock_gettime),
    call(SYS_brk),
    call(SYS_munmap),
    call(SYS_mremap),
    call(SYS_madvise),
    only(SYS_mmap, &[&[without(2, PROT_EXEC)]]),
    only(SYS_mprotect, &[&[without(2, PROT_EXEC)]]),
    call(SYS_write),
    call(SYS_poll),
    // The message of a panic names the thread's number.
    call(SYS_gettid),
    // Kicks vCPUs, and is abort(3) of glibc.
    only(SYS_tgkill, &[&[is(0, OWN_PROCESS), is(2, KICK)], &[is(0, OWN_PROCESS), is(2, SIGABRT as u32)]]),
    // The handlers of errors reset the terminal.
    only(SYS_ioctl, &[&[is(0, STDIN_FILENO as u32), is(1, TCSETS2 as u32)]]),
];

/// Rules of all kinds of thread but vCPUs: reads and other uses of open descriptors, sleep, and random keys
/// of hash maps.
static OPEN_FILES: &[Rule] = &[
    call(SYS_sched_yield),
    call(SYS_clock_nanosleep),
    call(SYS_getpid),
    call(SYS_getrandom),
    call(SYS_read),
    call(SYS_writev),
    call(SYS_close),
    call(SYS_ppoll),
    call(SYS_fstat),
    // The C library's other ways to examine an open descriptor.
    only(SYS_newfstatat, &[&[is(3, AT_EMPTY_PATH as u32)]]),
    only(SYS_statx, &[&[Condition { argument: 2, mask: AT_EMPTY_PATH as u32, value: AT_EMPTY_PATH as u32 }]]),
    // The debug build of Rust's library checks a descriptor that it closes.
    only(SYS_fcntl, &[&[is(1, F_GETFD as u32)], &[is(1, F_GETFL as u32)]]),
    // The thread's name.
    only(SYS_prctl, &[&[is(0, PR_GET_NAME as u32)]]),
];

const KVM: u8 = 0xae;
const KVM_RUN: u32 = request(0, KVM, 0x80, 0);
const KVM_SIGNAL_MSI: u32 = request(1, KVM, 0xa5, size_of::<kvm::kvm_msi>());
const KVM_IRQ_LINE: u32 = request(1, KVM, 0x61, size_of::<kvm::kvm_irq_level>());
const KVM_SET_GSI_ROUTING: u32 = request(1, KVM, 0x6a, size_of::<kvm::kvm_irq_routing>());

/// A vCPU's thread: runs the guest, interrupts it, and writes its serial output.
static VCPU: &[Rule] = &[
    only(
        SYS_ioctl,
        &[&[is(1, KVM_RUN)], &[is(1, KVM_SIGNAL_MSI)], &[is(1, KVM_IRQ_LINE)], &[is(1, KVM_SET_GSI_ROUTING)]],
    ),
    call(SYS_rt_sigtimedwait),
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
    // Ends for a passt that is started again.
    only(SYS_socketpair, &[&[is(0, AF_UNIX as u32)]]),
    call(SYS_pipe2),
];

/// A disk's thread: reads and writes its files, directly or by an io_uring that does nothing else and was
/// made before.
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

/// The opener: calls with paths, for the threads that may not make them, and connections of devices. Its
/// requests decide on the paths.
static OPENER: &[Rule] = &[
    call(SYS_recvmsg),
    call(SYS_sendmsg),
    call(SYS_open),
    call(SYS_openat),
    call(SYS_openat2),
    call(SYS_newfstatat),
    call(SYS_stat),
    call(SYS_lstat),
    call(SYS_statx),
    call(SYS_readlink),
    call(SYS_mkdirat),
    call(SYS_unlinkat),
    call(SYS_renameat),
    call(SYS_renameat2),
    call(SYS_linkat),
    call(SYS_flock),
    only(SYS_fcntl, &[&[is(1, F_DUPFD_CLOEXEC as u32)], &[is(1, F_SETFD as u32)]]),
    // Sockets that devices listen at, and a check of ports that passt will listen at.
    only(SYS_socket, &[&[is(0, AF_UNIX as u32)], &[is(0, AF_INET as u32)]]),
    call(SYS_connect),
    call(SYS_bind),
    call(SYS_listen),
    call(SYS_fchmod),
    call(SYS_getsockopt),
    // The Landlock domain of its bounds.
    call(SYS_landlock_create_ruleset),
    call(SYS_landlock_add_rule),
    call(SYS_landlock_restrict_self),
    only(SYS_setsockopt, &[&[is(1, SOL_SOCKET as u32), is(2, SO_REUSEADDR as u32)]]),
];

/// The resolver: sockets to the servers of the host, and their list. Landlock bounds the files and the ports.
/// The files and the socket that tell of the host's network are open before.
static RESOLVER: &[Rule] = &[
    call(SYS_recvfrom),
    call(SYS_sendto),
    call(SYS_open),
    call(SYS_openat),
    call(SYS_newfstatat),
    call(SYS_stat),
    call(SYS_statx),
    call(SYS_lseek),
    // The files about the host's network.
    call(SYS_pread64),
    // musl's open(3).
    only(SYS_fcntl, &[&[is(1, F_SETFD as u32)]]),
    only(SYS_socket, &[&[is(0, AF_INET as u32)], &[is(0, AF_INET6 as u32)]]),
    call(SYS_connect),
    // The number of an interface, for a server with a link-local address.
    only(SYS_ioctl, &[&[is(1, SIOCGIFINDEX as u32)]]),
];

/// Makes VMs: KVM's calls for the system, a VM and a vCPU.
static MAKE_VM: &[Rule] = &[only(
    SYS_ioctl,
    &[
        &[is(1, request(0, KVM, 0x00, 0))], // KVM_GET_API_VERSION
        &[is(1, request(0, KVM, 0x01, 0))], // KVM_CREATE_VM
        &[is(1, request(3, KVM, 0x02, size_of::<kvm::kvm_msr_list>()))], // KVM_GET_MSR_INDEX_LIST
        &[is(1, request(0, KVM, 0x03, 0))], // KVM_CHECK_EXTENSION
        &[is(1, request(0, KVM, 0x04, 0))], // KVM_GET_VCPU_MMAP_SIZE
        &[is(1, request(3, KVM, 0x05, size_of::<kvm::kvm_cpuid2>()))], // KVM_GET_SUPPORTED_CPUID
        &[is(1, request(3, KVM, 0x0a, size_of::<kvm::kvm_msr_list>()))], // KVM_GET_MSR_FEATURE_INDEX_LIST
        &[is(1, request(0, KVM, 0x41, 0))], // KVM_CREATE_VCPU
        &[is(1, request(1, KVM, 0x42, size_of::<kvm::kvm_dirty_log>()))], // KVM_GET_DIRTY_LOG
        // KVM_SET_USER_MEMORY_REGION
        &[is(1, request(1, KVM, 0x46, size_of::<kvm::kvm_userspace_memory_region>()))],
        &[is(1, request(0, KVM, 0x47, 0))], // KVM_SET_TSS_ADDR
        &[is(1, request(1, KVM, 0x48, 8))], // KVM_SET_IDENTITY_MAP_ADDR
        &[is(1, request(0, KVM, 0x60, 0))], // KVM_CREATE_IRQCHIP
        &[is(1, request(3, KVM, 0x62, size_of::<kvm::kvm_irqchip>()))], // KVM_GET_IRQCHIP
        &[is(1, request(2, KVM, 0x63, size_of::<kvm::kvm_irqchip>()))], // KVM_SET_IRQCHIP
        &[is(1, request(1, KVM, 0x76, size_of::<kvm::kvm_irqfd>()))], // KVM_IRQFD
        &[is(1, request(1, KVM, 0x77, size_of::<kvm::kvm_pit_config>()))], // KVM_CREATE_PIT2
        &[is(1, request(1, KVM, 0x79, size_of::<kvm::kvm_ioeventfd>()))], // KVM_IOEVENTFD
        &[is(1, request(1, KVM, 0x7b, size_of::<kvm::kvm_clock_data>()))], // KVM_SET_CLOCK
        &[is(1, request(2, KVM, 0x7c, size_of::<kvm::kvm_clock_data>()))], // KVM_GET_CLOCK
        &[is(1, request(2, KVM, 0x81, size_of::<kvm::kvm_regs>()))], // KVM_GET_REGS
        &[is(1, request(1, KVM, 0x82, size_of::<kvm::kvm_regs>()))], // KVM_SET_REGS
        &[is(1, request(2, KVM, 0x83, size_of::<kvm::kvm_sregs>()))], // KVM_GET_SREGS
        &[is(1, request(1, KVM, 0x84, size_of::<kvm::kvm_sregs>()))], // KVM_SET_SREGS
        &[is(1, request(3, KVM, 0x85, size_of::<kvm::kvm_translation>()))], // KVM_TRANSLATE
        &[is(1, request(3, KVM, 0x88, size_of::<kvm::kvm_msrs>()))], // KVM_GET_MSRS
        &[is(1, request(1, KVM, 0x89, size_of::<kvm::kvm_msrs>()))], // KVM_SET_MSRS
        &[is(1, request(1, KVM, 0x8b, size_of::<kvm::kvm_signal_mask>()))], // KVM_SET_SIGNAL_MASK
        &[is(1, request(2, KVM, 0x8e, size_of::<kvm::kvm_lapic_state>()))], // KVM_GET_LAPIC
        &[is(1, request(1, KVM, 0x8f, size_of::<kvm::kvm_lapic_state>()))], // KVM_SET_LAPIC
        &[is(1, request(1, KVM, 0x90, size_of::<kvm::kvm_cpuid2>()))], // KVM_SET_CPUID2
        &[is(1, request(2, KVM, 0x98, size_of::<kvm::kvm_mp_state>()))], // KVM_GET_MP_STATE
        &[is(1, request(1, KVM, 0x99, size_of::<kvm::kvm_mp_state>()))], // KVM_SET_MP_STATE
        &[is(1, request(2, KVM, 0x9f, size_of::<kvm::kvm_vcpu_events>()))], // KVM_GET_VCPU_EVENTS
        &[is(1, request(1, KVM, 0xa0, size_of::<kvm::kvm_vcpu_events>()))], // KVM_SET_VCPU_EVENTS
        &[is(1, request(2, KVM, 0x9f, size_of::<kvm::kvm_pit_state2>()))], // KVM_GET_PIT2
        &[is(1, request(1, KVM, 0xa0, size_of::<kvm::kvm_pit_state2>()))], // KVM_SET_PIT2
        &[is(1, request(2, KVM, 0xa1, size_of::<kvm::kvm_debugregs>()))], // KVM_GET_DEBUGREGS
        &[is(1, request(1, KVM, 0xa2, size_of::<kvm::kvm_debugregs>()))], // KVM_SET_DEBUGREGS
        &[is(1, request(0, KVM, 0xa2, 0))], // KVM_SET_TSC_KHZ
        &[is(1, request(0, KVM, 0xa3, 0))], // KVM_GET_TSC_KHZ
        &[is(1, request(1, KVM, 0xa3, size_of::<kvm::kvm_enable_cap>()))], // KVM_ENABLE_CAP
        &[is(1, request(2, KVM, 0xa4, size_of::<kvm::kvm_xsave>()))], // KVM_GET_XSAVE
        &[is(1, request(1, KVM, 0xa5, size_of::<kvm::kvm_xsave>()))], // KVM_SET_XSAVE
        &[is(1, request(2, KVM, 0xcf, size_of::<kvm::kvm_xsave>()))], // KVM_GET_XSAVE2
        &[is(1, request(2, KVM, 0xa6, size_of::<kvm::kvm_xcrs>()))], // KVM_GET_XCRS
        &[is(1, request(1, KVM, 0xa7, size_of::<kvm::kvm_xcrs>()))], // KVM_SET_XCRS
        &[is(1, request(0, KVM, 0xad, 0))], // KVM_KVMCLOCK_CTRL
        // KVM_PRE_FAULT_MEMORY
        &[is(1, request(3, KVM, 0xd5, size_of::<kvm::kvm_pre_fault_memory>()))],
        &[is(1, request(1, KVM, 0xe1, size_of::<kvm::kvm_device_attr>()))], // KVM_SET_DEVICE_ATTR
        &[is(1, request(1, KVM, 0xe2, size_of::<kvm::kvm_device_attr>()))], // KVM_GET_DEVICE_ATTR
    ],
)];

/// A thread that works for the program: the API, signals, the console, snapshots. It makes VMs and starts
/// all other threads, so these inherit its rules. Files come from the opener, and programs from the starter.
static WORKER: &[Rule] = &[
    only(
        SYS_ioctl,
        &[
            // Terminals.
            &[is(1, TCGETS as u32)],
            &[is(1, TCGETS2 as u32)],
            &[is(1, TCSETS2 as u32)],
            &[is(1, TIOCGPGRP as u32)],
            &[is(1, TIOCGWINSZ as u32)],
            // Taps, disks, and copies of files.
            &[is(1, TUNSETIFF as u32)],
            &[is(1, TUNGETIFF as u32)],
            &[is(1, TUNSETVNETHDRSZ as u32)],
            &[is(1, request(1, 0x94, 9, 4))], // FICLONE
            // Memory that is filled on touch.
            &[is(1, request(0, UFFD, 0, 0))],     // USERFAULTFD_IOC_NEW
            &[is(1, request(3, UFFD, 0x3f, 24))], // UFFDIO_API
            &[is(1, request(3, UFFD, 0, 32))],    // UFFDIO_REGISTER
            // Whether a memory handler has read what was sent to it: SIOCOUTQ.
            &[is(1, TIOCOUTQ as u32)],
        ],
    ),
    // Which memory of a guest that crashed can be read, and the name of its file.
    only(SYS_process_vm_readv, &[&[is(0, OWN_PROCESS)]]),
    call(SYS_readlink),
    call(SYS_userfaultfd),
    call(SYS_memfd_create),
    call(SYS_pipe2),
    call(SYS_socketpair),
    // At a socket that the opener bound.
    call(SYS_listen),
    call(SYS_getsockopt),
    call(SYS_signalfd4),
    call(SYS_lseek),
    call(SYS_copy_file_range),
    call(SYS_flock),
    call(SYS_fchmod),
    call(SYS_fstatfs),
    call(SYS_utimensat),
    call(SYS_getdents64),
    call(SYS_getcwd),
    call(SYS_uname),
    call(SYS_sysinfo),
    // getpgrp(3) of musl, and that of glibc.
    only(SYS_getpgid, &[&[is(0, 0)]]),
    call(SYS_getpgrp),
    call(SYS_geteuid),
    only(SYS_prctl, &[&[is(0, PR_GET_AUXV)]]),
    call(SYS_prlimit64),
    call(SYS_rt_sigaction),
    call(SYS_rt_sigtimedwait),
    call(SYS_wait4),
    // The children of this process alone have descriptors here.
    call(SYS_pidfd_send_signal),
    only(
        SYS_fcntl,
        &[
            &[is(1, F_DUPFD_CLOEXEC as u32)],
            &[is(1, F_SETFD as u32)],
            &[is(1, F_SETFL as u32)],
            &[is(1, F_OFD_SETLK as u32)],
            &[is(1, F_SETLEASE as u32)],
            &[is(1, F_SETSIG)],
            &[is(1, F_SETOWN_EX)],
            &[is(1, F_ADD_SEALS as u32)],
            &[is(1, F_GET_SEALS as u32)],
        ],
    ),
    // A lower priority of the thread itself (PRIO_PROCESS): the writer of a warm snapshot.
    only(SYS_setpriority, &[&[is(0, 0), is(1, 0), is(2, 10)]]),
    // Stops this process at SIGTSTP.
    only(SYS_kill, &[&[is(0, OWN_PROCESS), is(1, SIGSTOP as u32)]]),
];

/// `PR_GET_AUXV` (linux/prctl.h), `F_SETSIG` and `F_SETOWN_EX`
/// (asm-generic/fcntl.h).
const PR_GET_AUXV: u32 = 0x4155_5856;
const F_SETSIG: u32 = 10;
const F_SETOWN_EX: u32 = 15;

/// The kinds of thread with their rules, in the order of `ThreadKind`.
pub static KINDS: &[(&str, &[&[Rule]])] = &[
    ("vcpu", &[VCPU]),
    ("device", &[OPEN_FILES, DEVICE, FILL]),
    ("block", &[OPEN_FILES, BLOCK, FILL]),
    ("starter", &[OPEN_FILES, STARTER, START_THREADS, DEVICE, BLOCK, FILL]),
    ("pager", &[OPEN_FILES, FILL, START_THREADS, ANSWER]),
    ("opener", &[OPEN_FILES, OPENER]),
    ("resolver", &[OPEN_FILES, RESOLVER]),
    ("worker", &[OPEN_FILES, WORKER, MAKE_VM, VCPU, STARTER, START_THREADS, DEVICE, BLOCK, FILL]),
];
